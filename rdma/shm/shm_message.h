// The packets of the shm hand-over (SOCK_SEQPACKET, one message each) and the page that a borrower
// and the host share. docs/protocol-tcp.md has the layout. Numbers are in host order: both ends run
// on one kernel.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/strong.h"

namespace farpage::rdma::shm {

inline constexpr uint32_t kMagic = 0x53504146;   // "FAPS" in memory
inline constexpr uint16_t kProtocolVersion = 2;  // 2: keys of 128 bits
inline constexpr size_t kRequestBytes = 32;
inline constexpr size_t kVersion1RequestBytes = 16;
inline constexpr size_t kReplyBytes = 40;

enum class RequestKind : uint16_t {
  kHello = 1,   // first; the reply carries the PeerPage's memfd
  kAttach = 2,  // the reply carries the slab's memfd
};

enum class ReplyStatus : uint16_t {
  kOk = 0,
  kRemoteAccess = 1,  // unknown or withdrawn rkey, wrong generation
  kVersion = 2,
  kExhausted = 3,  // kMaxAttachments reached
};

struct Request {
  uint16_t version = kProtocolVersion;
  RequestKind kind = RequestKind::kHello;
  RemoteKey key;          // attach
  Generation generation;  // attach
  uint64_t session = 0;   // Hello: ChannelOptions::session
};

struct Reply {
  uint16_t version = kProtocolVersion;
  ReplyStatus status = ReplyStatus::kOk;
  uint32_t slot = 0;  // of PeerPage::lease
  // Attach: the content of that slot while the lease lasts; a host never reuses a number. Hello: a
  // random number of this run of the host.
  uint64_t lease = 0;
  uint64_t address = 0;  // remote address of the memfd's first byte
  uint64_t bytes = 0;
};

std::array<std::byte, kRequestBytes> encode(const Request& request);
std::array<std::byte, kReplyBytes> encode(const Reply& reply);
// Empty when malformed: wrong size, magic or kind. Does not check the version of a Hello; one of
// version 1 is shorter.
std::optional<Request> decode_request(std::span<const std::byte> bytes);
std::optional<Reply> decode_reply(std::span<const std::byte> bytes);

inline constexpr uint32_t kMaxAttachments = 8192;

// One per connection, in a memfd made by the host. Both sides write to it, so each relies on it
// only where a wrong value harms the other side alone.
//
// A copy: the borrower makes `copying` odd, reads its lease word, copies, makes `copying` even. A
// withdrawal: the host clears the word, then reads `copying` and, if it is odd, waits until it
// changes. The first two accesses of each are sequentially consistent, so either the borrower sees
// the cleared word or the host sees the copy.
struct PeerPage {
  alignas(64) std::atomic<uint64_t> copying{0};
  // Written by the borrower; the host only reports them.
  alignas(64) std::atomic<uint64_t> reads{0};
  std::atomic<uint64_t> writes{0};
  std::atomic<uint64_t> bytes_read{0};
  std::atomic<uint64_t> bytes_written{0};
  std::atomic<uint64_t> refused{0};
  alignas(64) std::atomic<uint64_t> lease[kMaxAttachments] = {};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace farpage::rdma::shm
