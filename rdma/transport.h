// The transport interface: one-sided READs and WRITEs to a remote memory node.
//
// A Channel connects to one node and belongs to one thread. Posting and polling never block, and
// allocate only when an operation fails. tests/contract/ states the contract of all
// implementations.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "base/strong.h"
#include "rdma/endpoint.h"

namespace farpage::rdma {

// How one operation ended.
enum class CompletionStatus : uint8_t {
  kOk,
  kRemoteAccess,  // the node refused: unknown or revoked rkey, wrong generation, bounds, rights
  kLocalError,    // this side's buffer or queue pair was refused: a bug or a lost device
  kPeerGone,      // the node does not answer or closed the connection
  kTimedOut,      // no answer within operation_timeout
  kFlushed,       // aborted because another operation broke the channel; may have taken effect
};
std::string_view to_string(CompletionStatus status);

enum class OperationKind : uint8_t { kRead, kWrite };

// local must lie inside the channel's registered buffer, have 1 to limits().operation_bytes bytes
// (else the operation completes with kLocalError and nothing is sent), and belongs to the channel
// from post() to the completion. remote.. remote + local.size() must lie inside one lease.
struct Operation {
  OperationKind kind = OperationKind::kRead;
  std::span<std::byte> local;
  RemoteAddress remote;
  RemoteKey key;
  Generation generation;
  uint64_t token = 0;  // chosen by the caller; returned with the completion
};

struct Completion {
  uint64_t token = 0;
  CompletionStatus status = CompletionStatus::kOk;
};

struct ChannelLimits {
  uint32_t operations_in_flight = 0;  // READs and WRITEs together
  uint32_t reads_in_flight = 0;       // of these, READs the wire carries at once (the rest queue)
  uint32_t operation_bytes = 0;       // longest single operation
};

// Whether the data of WRITEs crosses the wire compressed; the slab has the pages as they are. Only
// tcp does it.
enum class PackWrites : uint8_t {
  kNever,
  kOnSlowWire,  // while bytes take longer on the wire than compressing them, and if they shrink
  kAlways,      // all whole pages, even where they do not shrink: for tests
};

// How wait() waits. kAdaptive spins with sched_yield for spin_time, then blocks.
enum class PollMode : uint8_t { kAdaptive, kBusy, kEvent };
std::string_view to_string(PollMode mode);
std::optional<PollMode> poll_mode_from(std::string_view name);

// Threads: one thread owns a channel and makes all calls; any thread may call usable().
// Invariants:
//  1. Each accepted operation completes exactly once, at the latest in the first poll() or wait()
//     after its operation_timeout, even if the peer dies.
//  2. After the first status other than kOk that breaks the connection, usable() is false, post()
//     accepts nothing, and all that is in flight completes with an error.
//  3. A kRemoteAccess breaks a verbs channel (the queue pair goes to ERROR); others stay usable.
//     Callers must check usable() and rely on neither.
//  4. The bytes of a READ are in `local` if and only if its completion says kOk.
class Channel {
 public:
  virtual ~Channel() = default;

  virtual ChannelLimits limits() const = 0;
  virtual TransportKind kind() const = 0;

  // Accepts a prefix of `operations` and returns its length: shorter than given when the channel is
  // full, 0 when it is not usable. Operations are sent with one doorbell or one system call.
  virtual size_t post(std::span<const Operation> operations) = 0;

  // Completed operations, in any order; returns how many were stored. Never blocks.
  virtual size_t poll(std::span<Completion> completions) = 0;

  // As poll(), but waits for the first completion up to `timeout`. Returns 0 at once if nothing is
  // in flight.
  virtual size_t wait(std::span<Completion> completions, Nanoseconds timeout) = 0;

  virtual bool usable() const = 0;
  // Why the channel is not usable, for the log; empty while it is.
  virtual std::string why_broken() const = 0;
};

struct ChannelOptions {
  // Registered once for local access; must outlive the channel. Page-aligned.
  std::span<std::byte> buffer;
  // Names this side's end across reconnections to a host; random. A new channel fences the previous
  // one of the same session: once connect() has returned, no WRITE posted on the previous one takes
  // effect, even if it was still in flight; and the previous one breaks, at the latest when it is
  // used. 0: no session; such a channel fences none and is not fenced.
  uint64_t session = 0;
  uint32_t operations_in_flight = 64;
  PollMode poll_mode = PollMode::kAdaptive;
  Nanoseconds spin_time = std::chrono::microseconds(50);
  Nanoseconds operation_timeout = Milliseconds(1000);
  Nanoseconds connect_timeout = Milliseconds(1000);
  PackWrites pack_writes = PackWrites::kNever;
};

// Sends our queue pair's endpoint to the node and returns the node's (verbs only; the other
// transports never call it). The composition root provides it: it goes through the coordinator.
using QueuePairExchange = std::function<Result<QueuePairEndpoint>(const QueuePairEndpoint& ours)>;

// Makes channels of one kind. Threads: any; connect() blocks up to connect_timeout.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual TransportKind kind() const = 0;
  // Fails with kUnsupported and the reason if this host cannot use it for that address (no device,
  // another host's memory); the caller can then use the next transport.
  virtual Result<std::unique_ptr<Channel>> connect(const TransportAddress& address,
                                                   const ChannelOptions& options,
                                                   const QueuePairExchange& exchange) = 0;
};

}  // namespace farpage::rdma
