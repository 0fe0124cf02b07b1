// Limits of tcp, shm and loop; verbs asks its device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "rdma/transport.h"

namespace farpage::rdma {

inline constexpr uint32_t kMaxOperationBytes = 1U << 20;
inline constexpr uint32_t kMaxOperationsInFlight = 1024;
// Limit of distinct never-issued keys on one tcp or shm connection. At the limit the node sends the
// refusals, closes the connection, and delays new connections of the peer by kGuessPenalty. A
// withdrawn key does not count. A borrower of the node's previous run presents one key per slab:
// each connection tells it that kMaxUnknownKeys slabs are lost. The penalty is well below
// ChannelOptions::connect_timeout, so a delayed connection does not time out.
inline constexpr uint32_t kMaxUnknownKeys = 16;
inline constexpr Nanoseconds kGuessPenalty = Milliseconds(250);

inline ChannelLimits limits_for(const ChannelOptions& options) {
  const uint32_t in_flight =
      std::clamp<uint32_t>(options.operations_in_flight, 1, kMaxOperationsInFlight);
  return {in_flight, in_flight, kMaxOperationBytes};
}

// What every channel checks before anything is sent; an operation that fails completes with
// kLocalError and leaves the channel usable.
inline bool local_side_is_valid(const Operation& operation, std::span<const std::byte> buffer,
                                uint32_t operation_bytes) {
  const std::span<const std::byte> local = operation.local;
  if (local.empty() || local.size() > operation_bytes) return false;
  const auto begin = reinterpret_cast<uintptr_t>(local.data());
  const auto buffer_begin = reinterpret_cast<uintptr_t>(buffer.data());
  return begin >= buffer_begin && local.size() <= buffer.size() &&
         begin - buffer_begin <= buffer.size() - local.size();
}

// The buffer's contract (transport.h); checked once, when a channel is made.
inline Status check_buffer(const ChannelOptions& options) {
  if (options.buffer.empty() ||
      reinterpret_cast<uintptr_t>(options.buffer.data()) % kPageBytes != 0)
    return fail(ErrorCode::kInvalid, "buffer must be page-aligned and not empty");
  return {};
}

}  // namespace farpage::rdma
