#include "rdma/verbs/operation_ring.h"

#include "base/check.h"

namespace farpage::rdma::verbs {

void OperationRing::push(uint64_t token, Instant posted_at) {
  FARPAGE_CHECK(room() > 0, "ring of %u is full", capacity());
  Slot& next = slot(posted_);
  next.completion = {.token = token, .status = CompletionStatus::kOk};
  next.posted_at = posted_at;
  ++posted_;
}

bool OperationRing::complete(uint64_t sequence, CompletionStatus status) {
  if (sequence < completed_ || sequence >= posted_) return false;
  slot(sequence).completion.status = status;
  completed_ = sequence + 1;
  return true;
}

void OperationRing::abandon(Instant deadline_passed_for) {
  for (; completed_ != posted_; ++completed_) {
    Slot& ended = slot(completed_);
    ended.completion.status = ended.posted_at <= deadline_passed_for ? CompletionStatus::kTimedOut
                                                                     : CompletionStatus::kFlushed;
  }
}

size_t OperationRing::take(std::span<Completion> completions) {
  size_t count = 0;
  while (count < completions.size() && taken_ != completed_) {
    completions[count++] = slot(taken_++).completion;
  }
  return count;
}

}  // namespace farpage::rdma::verbs
