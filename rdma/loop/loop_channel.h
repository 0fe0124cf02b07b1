// LoopChannel: operations wait in a list until the network's faults let them complete.
#pragma once

#include <atomic>
#include <memory>
#include <random>
#include <vector>

#include "rdma/fixed_queue.h"
#include "rdma/loop/loop_network.h"
#include "rdma/transport.h"

namespace farpage::rdma::loop {

// Threads: see Channel.
// Invariants:
//  1. pending_ is in posting order. Bytes move when an operation completes, not earlier; until then
//     a READ's buffer holds a filler, which exposes a reader that does not wait.
//  2. Bytes move only with pass_ open: once a newer channel connects, pending operations have no
//     effect.
class LoopChannel final : public Channel {
 public:
  LoopChannel(std::shared_ptr<Network> network, std::shared_ptr<HostCore> host,
              const ChannelOptions& options, ChannelLimits limits);
  ~LoopChannel() override;

  ChannelLimits limits() const override { return limits_; }
  TransportKind kind() const override { return TransportKind::kLoop; }
  size_t post(std::span<const Operation> operations) override;
  size_t poll(std::span<Completion> completions) override;
  size_t wait(std::span<Completion> completions, Nanoseconds timeout) override;
  bool usable() const override { return usable_.load(std::memory_order_acquire); }
  std::string why_broken() const override;

 private:
  struct Pending {
    Operation operation;
    Instant deadline{0};
    uint64_t due_poll = 0;
    Instant due_time{0};
    CompletionStatus failure = CompletionStatus::kOk;  // unless kOk: its result, without an effect
    bool lost = false;
  };

  size_t write_bytes_in_flight() const;
  Pending make_pending(const Operation& operation, const LoopFaults& faults, Instant now);
  uint64_t random_up_to(uint64_t maximum);
  void advance();
  void complete_due(Instant now);
  void complete(size_t index);
  CompletionStatus execute(const Operation& operation);
  CompletionStatus copy(const Operation& operation);
  void break_with(CompletionStatus first, CompletionStatus rest, const char* reason);

  const std::shared_ptr<Network> network_;
  const std::shared_ptr<HostCore> host_;
  const SessionFences::Pass pass_;
  const ChannelOptions options_;
  const ChannelLimits limits_;

  std::mt19937_64 random_;
  std::vector<Pending> pending_;
  FixedQueue<Completion> done_;
  uint64_t polls_ = 0;
  bool reorder_ = false;

  std::atomic<bool> usable_{true};
  const char* broken_reason_ = "";
};

}  // namespace farpage::rdma::loop
