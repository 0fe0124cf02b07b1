// ShmChannel: READ and WRITE as copies between the buffer and the node's memfds.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/fd.h"
#include "base/mapping.h"
#include "rdma/fixed_queue.h"
#include "rdma/session_fences.h"
#include "rdma/shm/shm_message.h"
#include "rdma/shm/slab_mappings.h"
#include "rdma/transport.h"

namespace farpage::rdma::shm {

// What the channels of one transport share. Threads: any.
struct ProcessState {
  SlabMappings mappings;
  SessionFences fences;
};

// Threads: see Channel.
// Invariants:
//  1. An operation on an attached slab is done when post() returns. Others are in waiting_, in
//     posting order; while there are any, one attach request is in flight.
//  2. waiting_ and done_ together never exceed limits().operations_in_flight.
//  3. Bytes move only on the owner's thread, inside post(), poll() and wait(), while the channel is
//     usable and its pass is open. So a broken or destroyed channel has nothing in flight, and
//     nothing moves once a newer channel of the session has connected.
class ShmChannel final : public Channel {
 public:
  // The result of the handshake.
  struct Connection {
    Fd socket;
    Mapping page;  // holds a PeerPage
    uint64_t host_number = 0;
    std::string name;  // for the log
  };

  ShmChannel(Connection connection, const ChannelOptions& options, ChannelLimits limits,
             std::shared_ptr<ProcessState> process);

  ChannelLimits limits() const override { return limits_; }
  TransportKind kind() const override { return TransportKind::kShm; }
  size_t post(std::span<const Operation> operations) override;
  size_t poll(std::span<Completion> completions) override;
  size_t wait(std::span<Completion> completions, Nanoseconds timeout) override;
  bool usable() const override { return usable_.load(std::memory_order_acquire); }
  std::string why_broken() const override;

 private:
  struct Attachment {
    std::shared_ptr<Mapping> slab;
    Generation generation;
    uint32_t slot = 0;
    uint64_t lease = 0;
    uint64_t address = 0;
  };
  struct Waiting {
    Operation operation;
    Instant deadline{0};
  };

  // The operation's result, or nothing when its slab must be attached first.
  std::optional<CompletionStatus> run(const Operation& operation);
  // False when the lease was withdrawn. Refusals for other reasons are in `status`.
  bool copy(const Operation& operation, const Attachment& attachment, CompletionStatus& status);
  bool holds(const Attachment& attachment) const;
  void check_pass();

  // Reads the host's messages and detects when it is gone.
  void look();
  void take_reply(const Reply& reply, const Fd& memfd);
  CompletionStatus attach(const Request& request, const Reply& reply, const Fd& memfd);
  // Runs the operations that waited for the answered request.
  void rerun_waiting(const Request& answered, CompletionStatus answer);
  void ask_for_next();
  void check_deadline();
  void break_with(CompletionStatus status, const char* reason);
  void block(Instant deadline);
  bool idle() const { return waiting_.empty() && done_.empty(); }

  // Constant after construction.
  const Connection connection_;
  PeerPage* const page_;
  const ChannelOptions options_;
  const ChannelLimits limits_;
  const std::shared_ptr<ProcessState> process_;
  const SessionFences::Pass pass_;

  std::unordered_map<RemoteKey, Attachment> attachments_;
  std::optional<Request> asked_;
  FixedQueue<Waiting> waiting_;
  FixedQueue<Completion> done_;
  uint64_t copying_ = 0;
  Instant last_look_{0};

  std::atomic<bool> usable_{true};
  const char* broken_reason_ = "";
};

}  // namespace farpage::rdma::shm
