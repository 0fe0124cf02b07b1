#include "rdma/shm/shm_message.h"

#include <cstring>

namespace farpage::rdma::shm {
namespace {

struct WireRequest {
  uint32_t magic;
  uint16_t version;
  uint16_t kind;
  union {
    struct {
      uint32_t key;
      uint32_t generation;
    } lease;           // attach
    uint64_t session;  // Hello
  } body;
  std::array<uint64_t, 2> secret;  // attach: of the key
};
static_assert(sizeof(WireRequest) == kRequestBytes);

struct WireReply {
  uint32_t magic;
  uint16_t version;
  uint16_t status;
  uint32_t slot;
  uint32_t reserved;
  uint64_t lease;
  uint64_t address;
  uint64_t bytes;
};
static_assert(sizeof(WireReply) == kReplyBytes);

}  // namespace

std::array<std::byte, kRequestBytes> encode(const Request& request) {
  WireRequest wire{kMagic, request.version, static_cast<uint16_t>(request.kind), {}, {}};
  if (request.kind == RequestKind::kHello) {
    wire.body.session = request.session;
  } else {
    wire.body.lease = {request.key.value, request.generation.value};
    wire.secret = request.key.secret;
  }
  std::array<std::byte, kRequestBytes> bytes{};
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

std::array<std::byte, kReplyBytes> encode(const Reply& reply) {
  const WireReply wire{
      kMagic,        reply.version, static_cast<uint16_t>(reply.status), reply.slot, 0, reply.lease,
      reply.address, reply.bytes};
  std::array<std::byte, kReplyBytes> bytes{};
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

std::optional<Request> decode_request(std::span<const std::byte> bytes) {
  WireRequest wire{};
  if (bytes.size() != sizeof wire && bytes.size() != kVersion1RequestBytes) return std::nullopt;
  std::memcpy(&wire, bytes.data(), bytes.size());
  if (wire.magic != kMagic) return std::nullopt;
  const bool hello = wire.kind == static_cast<uint16_t>(RequestKind::kHello);
  if (bytes.size() != sizeof wire && !(hello && wire.version == 1)) return std::nullopt;
  if (!hello && wire.kind != static_cast<uint16_t>(RequestKind::kAttach)) return std::nullopt;
  if (!hello && wire.version != kProtocolVersion) return std::nullopt;
  Request request{.version = wire.version, .kind = static_cast<RequestKind>(wire.kind)};
  if (hello) {
    request.session = wire.body.session;
  } else {
    request.key = RemoteKey{wire.body.lease.key, wire.secret};
    request.generation = Generation{wire.body.lease.generation};
  }
  return request;
}

std::optional<Reply> decode_reply(std::span<const std::byte> bytes) {
  WireReply wire{};
  if (bytes.size() != sizeof wire) return std::nullopt;
  std::memcpy(&wire, bytes.data(), sizeof wire);
  if (wire.magic != kMagic || wire.reserved != 0 || wire.slot >= kMaxAttachments)
    return std::nullopt;
  if (wire.status > static_cast<uint16_t>(ReplyStatus::kExhausted)) return std::nullopt;
  return Reply{wire.version, static_cast<ReplyStatus>(wire.status),
               wire.slot,    wire.lease,
               wire.address, wire.bytes};
}

}  // namespace farpage::rdma::shm
