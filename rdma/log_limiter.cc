#include "rdma/log_limiter.h"

#include <utility>

namespace farpage::rdma {

std::optional<uint64_t> LogLimiter::allow(Instant now) {
  const MutexLock lock(mutex_);
  if (now - interval_start_ >= kInterval) {
    interval_start_ = now;
    lines_ = 0;
  }
  if (lines_ == kMaxLinesPerInterval) {
    ++held_back_;
    return std::nullopt;
  }
  ++lines_;
  return std::exchange(held_back_, 0);
}

}  // namespace farpage::rdma
