#include "rdma/tcp/frame.h"

#include <endian.h>

#include <cstring>

#include "base/check.h"
#include "rdma/limits.h"
#include "rdma/tcp/packed_pages.h"

namespace farpage::rdma::tcp {
namespace {

enum class FrameKind : uint8_t {
  kHello = 1,
  kWelcome = 2,
  kRead = 3,
  kWrite = 4,
  kReply = 5,
  kPackedWrite = 6,
};

// What Hello asks for and Welcome grants. 0 is the handshake of releases without packed WRITEs.
constexpr uint32_t kPacksWrites = 1U << 0;

uint8_t to_wire(uint8_t value) {
  return value;
}
uint16_t to_wire(uint16_t value) {
  return htole16(value);
}
uint32_t to_wire(uint32_t value) {
  return htole32(value);
}
uint64_t to_wire(uint64_t value) {
  return htole64(value);
}

// Writes fields one after the other; all of the frame must be written.
template <size_t N>
class Writer {
 public:
  Writer(uint64_t data_bytes, uint8_t version, FrameKind kind, WireStatus status) {
    put(static_cast<uint32_t>(N + data_bytes));
    put(kMagic);
    put(version);
    put(static_cast<uint8_t>(kind));
    put(static_cast<uint16_t>(status));
  }

  template <typename T>
  void put(T value) {
    const T wire = to_wire(value);
    std::memcpy(bytes_.data() + at_, &wire, sizeof wire);
    at_ += sizeof wire;
  }

  std::array<std::byte, N> take() const {
    FARPAGE_CHECK(at_ == N, "%zu of %zu bytes of a frame were written", at_, N);
    return bytes_;
  }

 private:
  std::array<std::byte, N> bytes_{};
  size_t at_ = 0;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    T wire{};
    std::memcpy(&wire, bytes_.data() + at_, sizeof wire);
    at_ += sizeof wire;
    return to_wire(wire);  // its own inverse
  }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

// What every frame begins with.
struct Prefix {
  uint32_t frame_bytes = 0;
  uint32_t magic = 0;
  uint8_t version = 0;
  uint8_t kind = 0;
  uint16_t status = 0;
};

Prefix read_prefix(Reader& reader) {
  Prefix prefix;
  prefix.frame_bytes = reader.get<uint32_t>();
  prefix.magic = reader.get<uint32_t>();
  prefix.version = reader.get<uint8_t>();
  prefix.kind = reader.get<uint8_t>();
  prefix.status = reader.get<uint16_t>();
  return prefix;
}

FrameKind kind_of(const Request& request) {
  if (request.kind == OperationKind::kRead) return FrameKind::kRead;
  return request.packed_bytes != 0 ? FrameKind::kPackedWrite : FrameKind::kWrite;
}

bool is(const Prefix& prefix, FrameKind kind) {
  return prefix.kind == static_cast<uint8_t>(kind);
}

bool is(const Prefix& prefix, WireStatus status) {
  return prefix.status == static_cast<uint16_t>(status);
}

}  // namespace

std::string_view to_string(FrameFault fault) {
  switch (fault) {
    case FrameFault::kWrongMagic:
      return "wrong magic number";
    case FrameFault::kWrongVersion:
      return "wrong protocol version";
    case FrameFault::kUnexpectedKind:
      return "unexpected kind of frame";
    case FrameFault::kFrameBytes:
      return "wrong frame length";
    case FrameFault::kDataBytes:
      return "data length is out of range";
    case FrameFault::kUnknownStatus:
      return "unknown status";
    case FrameFault::kReserved:
      return "reserved field is not zero";
    case FrameFault::kPackedPages:
      return "packed data is not of the pages that its header announces";
  }
  return "unknown";
}

std::array<std::byte, kHelloBytes> encode(const Hello& hello) {
  Writer<kHelloBytes> writer(0, hello.version, FrameKind::kHello, WireStatus::kOk);
  writer.put(hello.operations_in_flight);
  writer.put(hello.packs_writes ? kPacksWrites : uint32_t{0});
  writer.put(hello.session);
  return writer.take();
}

std::array<std::byte, kWelcomeBytes> encode(const Welcome& welcome) {
  Writer<kWelcomeBytes> writer(0, welcome.version, FrameKind::kWelcome, welcome.status);
  writer.put(welcome.operation_bytes);
  writer.put(welcome.packs_writes ? kPacksWrites : uint32_t{0});
  return writer.take();
}

std::array<std::byte, kRequestBytes> encode(const Request& request) {
  Writer<kRequestBytes> writer(request.bytes_behind(), kProtocolVersion, kind_of(request),
                               WireStatus::kOk);
  writer.put(request.key.value);
  writer.put(request.generation.value);
  writer.put(request.key.secret[0]);
  writer.put(request.key.secret[1]);
  writer.put(request.token);
  writer.put(request.address.value);
  writer.put(request.data_bytes);
  return writer.take();
}

std::array<std::byte, kReplyBytes> encode(const Reply& reply) {
  Writer<kReplyBytes> writer(reply.data_bytes, kProtocolVersion, FrameKind::kReply, reply.status);
  writer.put(reply.token);
  writer.put(reply.data_bytes);
  return writer.take();
}

Decoded<Hello> decode_hello(std::span<const std::byte, kHelloBytes> bytes) {
  Reader reader(bytes);
  const Prefix prefix = read_prefix(reader);
  if (prefix.frame_bytes != kHelloBytes) return tl::unexpected(FrameFault::kFrameBytes);
  if (prefix.magic != kMagic) return tl::unexpected(FrameFault::kWrongMagic);
  if (!is(prefix, FrameKind::kHello)) return tl::unexpected(FrameFault::kUnexpectedKind);
  if (!is(prefix, WireStatus::kOk)) return tl::unexpected(FrameFault::kUnknownStatus);
  Hello hello;
  hello.version = prefix.version;
  hello.operations_in_flight = reader.get<uint32_t>();
  const auto features = reader.get<uint32_t>();
  if ((features & ~kPacksWrites) != 0) return tl::unexpected(FrameFault::kReserved);
  hello.packs_writes = features != 0;
  hello.session = reader.get<uint64_t>();
  return hello;
}

Decoded<Welcome> decode_welcome(std::span<const std::byte, kWelcomeBytes> bytes) {
  Reader reader(bytes);
  const Prefix prefix = read_prefix(reader);
  if (prefix.frame_bytes != kWelcomeBytes) return tl::unexpected(FrameFault::kFrameBytes);
  if (prefix.magic != kMagic) return tl::unexpected(FrameFault::kWrongMagic);
  if (!is(prefix, FrameKind::kWelcome)) return tl::unexpected(FrameFault::kUnexpectedKind);
  if (!is(prefix, WireStatus::kOk) && !is(prefix, WireStatus::kVersion))
    return tl::unexpected(FrameFault::kUnknownStatus);
  Welcome welcome;
  welcome.version = prefix.version;
  welcome.status = static_cast<WireStatus>(prefix.status);
  welcome.operation_bytes = reader.get<uint32_t>();
  const auto features = reader.get<uint32_t>();
  if ((features & ~kPacksWrites) != 0) return tl::unexpected(FrameFault::kReserved);
  welcome.packs_writes = features != 0;
  return welcome;
}

Decoded<Request> decode_request(std::span<const std::byte, kRequestBytes> bytes) {
  Reader reader(bytes);
  const Prefix prefix = read_prefix(reader);
  if (prefix.magic != kMagic) return tl::unexpected(FrameFault::kWrongMagic);
  if (prefix.version != kProtocolVersion) return tl::unexpected(FrameFault::kWrongVersion);
  const bool read = is(prefix, FrameKind::kRead);
  const bool packed = is(prefix, FrameKind::kPackedWrite);
  if (!read && !packed && !is(prefix, FrameKind::kWrite))
    return tl::unexpected(FrameFault::kUnexpectedKind);
  if (!is(prefix, WireStatus::kOk)) return tl::unexpected(FrameFault::kUnknownStatus);
  Request request;
  request.kind = read ? OperationKind::kRead : OperationKind::kWrite;
  request.key.value = reader.get<uint32_t>();
  request.generation = {reader.get<uint32_t>()};
  request.key.secret = {reader.get<uint64_t>(), reader.get<uint64_t>()};
  request.token = reader.get<uint64_t>();
  request.address = {reader.get<uint64_t>()};
  request.data_bytes = reader.get<uint32_t>();
  if (request.data_bytes == 0 || request.data_bytes > kMaxOperationBytes)
    return tl::unexpected(FrameFault::kDataBytes);
  if (packed) {
    if (!can_be_packed(request.data_bytes)) return tl::unexpected(FrameFault::kDataBytes);
    // A length below that of the header becomes too long.
    request.packed_bytes = static_cast<uint32_t>(prefix.frame_bytes - kRequestBytes);
    const auto pages = static_cast<uint32_t>(request.data_bytes / kPageBytes);
    if (request.packed_bytes < pages * kMinPackedPageBytes ||
        request.packed_bytes > pages * kMaxPackedPageBytes)
      return tl::unexpected(FrameFault::kFrameBytes);
  } else if (prefix.frame_bytes != kRequestBytes + request.bytes_behind()) {
    return tl::unexpected(FrameFault::kFrameBytes);
  }
  return request;
}

Decoded<Reply> decode_reply(std::span<const std::byte, kReplyBytes> bytes) {
  Reader reader(bytes);
  const Prefix prefix = read_prefix(reader);
  if (prefix.magic != kMagic) return tl::unexpected(FrameFault::kWrongMagic);
  if (prefix.version != kProtocolVersion) return tl::unexpected(FrameFault::kWrongVersion);
  if (!is(prefix, FrameKind::kReply)) return tl::unexpected(FrameFault::kUnexpectedKind);
  const bool ok = is(prefix, WireStatus::kOk);
  if (!ok && !is(prefix, WireStatus::kRemoteAccess))
    return tl::unexpected(FrameFault::kUnknownStatus);
  Reply reply;
  reply.status = static_cast<WireStatus>(prefix.status);
  reply.token = reader.get<uint64_t>();
  reply.data_bytes = reader.get<uint32_t>();
  if (reply.data_bytes > kMaxOperationBytes || (!ok && reply.data_bytes != 0))
    return tl::unexpected(FrameFault::kDataBytes);
  if (prefix.frame_bytes != kReplyBytes + reply.data_bytes)
    return tl::unexpected(FrameFault::kFrameBytes);
  return reply;
}

}  // namespace farpage::rdma::tcp
