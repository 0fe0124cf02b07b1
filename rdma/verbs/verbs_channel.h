// Channel over one reliable-connected queue pair.
//
// When an operation fails, the queue pair is destroyed at once and later operations end as
// kFlushed: after destruction the device accesses no buffer, whatever the driver does with flushed
// requests, and no late completion can be mistaken for a new operation's.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rdma/transport.h"
#include "rdma/verbs/operation_ring.h"
#include "rdma/verbs/queue_pair.h"
#include "rdma/verbs/resources.h"

namespace farpage::rdma::verbs {

class VerbsChannel final : public Channel {
 public:
  // completions has room for every operation in flight; queue_pair reports to it.
  VerbsChannel(std::shared_ptr<const Device> device, Registration registration,
               CompletionQueue completions, QueuePair queue_pair, const ChannelLimits& limits,
               const ChannelOptions& options);

  ChannelLimits limits() const override { return limits_; }
  TransportKind kind() const override { return TransportKind::kVerbs; }
  size_t post(std::span<const Operation> operations) override;
  size_t poll(std::span<Completion> completions) override;
  size_t wait(std::span<Completion> completions, Nanoseconds timeout) override;
  bool usable() const override { return usable_.load(std::memory_order_acquire); }
  std::string why_broken() const override { return why_broken_; }

 private:
  bool may_be_sent(const Operation& operation) const;
  void prepare(const Operation& operation, uint64_t sequence, size_t index);
  struct Sent {
    size_t accepted = 0;  // operations
    int error = 0;
  };
  Sent send(size_t requests, uint64_t first, size_t count);
  bool harvest();
  void expire();
  void break_channel(const std::string& why, Instant deadline_passed_for);
  size_t spin(std::span<Completion> completions, Instant until, bool yield);
  size_t block(std::span<Completion> completions, Instant until);
  void sleep_until_event(Instant until);

  // Constant after construction.
  const ChannelLimits limits_;
  const std::span<std::byte> memory_;
  const PollMode poll_mode_;
  const Nanoseconds spin_time_;
  const Nanoseconds operation_timeout_;

  // Owner's thread only. In creation order: destroyed in reverse.
  std::shared_ptr<const Device> device_;
  Registration registration_;
  CompletionQueue completions_;
  std::optional<QueuePair> queue_pair_;  // empty once the channel is broken
  OperationRing ring_;
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> slices_;
  std::string why_broken_;

  std::atomic<bool> usable_{true};  // released by break_channel(), acquired by usable()
};

}  // namespace farpage::rdma::verbs
