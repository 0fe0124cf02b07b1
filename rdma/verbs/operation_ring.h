// OperationRing: what is in flight on one queue pair, in the order of posting.
//
// A reliable-connected send queue completes in that order, so the completion of one operation
// implies that all earlier ones succeeded; these need not be signalled. The work request's id is
// the operation's sequence number.
//
// Threads: the channel's. Never allocates after construction.
// Invariants:
//  1. taken_ <= completed_ <= posted_ <= taken_ + capacity.
//  2. Each operation is taken exactly once, with the status it completed with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "rdma/transport.h"

namespace farpage::rdma::verbs {

class OperationRing {
 public:
  explicit OperationRing(uint32_t capacity) : slots_(capacity) {}

  uint32_t capacity() const { return static_cast<uint32_t>(slots_.size()); }
  uint32_t room() const { return capacity() - static_cast<uint32_t>(posted_ - taken_); }
  // Nothing is in flight and nothing waits to be taken.
  bool empty() const { return posted_ == taken_; }
  // Posted, and not completed yet.
  bool awaits_completion() const { return completed_ != posted_; }

  // The number that the next push() will give.
  uint64_t next_sequence() const { return posted_; }
  // REQUIRES room() > 0.
  void push(uint64_t token, Instant posted_at);

  // Adds an operation that was never sent and has already failed; it completes after all earlier
  // ones. REQUIRES room() > 0.
  void push_refused(uint64_t token, CompletionStatus status);

  // The operation has this status and all earlier ones succeeded. A number that is not in flight is
  // ignored: returns false.
  bool complete(uint64_t sequence, CompletionStatus status);

  // Completes everything in flight: with kTimedOut if posted before `deadline_passed_for`, else
  // with kFlushed.
  void abandon(Instant deadline_passed_for);

  // REQUIRES awaits_completion().
  Instant oldest_posted_at() const { return slot(completed_).posted_at; }

  // Moves what has completed to `completions`, oldest first; returns how many.
  size_t take(std::span<Completion> completions);

 private:
  struct Slot {
    Completion completion;
    Instant posted_at{};
    bool refused = false;
  };
  void pass_refused();
  Slot& slot(uint64_t sequence) { return slots_[sequence % slots_.size()]; }
  const Slot& slot(uint64_t sequence) const { return slots_[sequence % slots_.size()]; }

  std::vector<Slot> slots_;
  uint64_t posted_ = 0;     // one past the newest operation
  uint64_t completed_ = 0;  // one past the newest completed one
  uint64_t taken_ = 0;      // one past the newest taken one
};

}  // namespace farpage::rdma::verbs
