// LogLimiter: keeps a peer that misbehaves from filling the log.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/mutex.h"

namespace farpage::rdma {

// Threads: any.
class LogLimiter {
 public:
  static constexpr uint32_t kMaxLinesPerInterval = 8;
  static constexpr Nanoseconds kInterval = Seconds(10);

  // The number of lines suppressed since the last one; nullopt if no line may be written now.
  std::optional<uint64_t> allow(Instant now);

 private:
  Mutex mutex_;
  Instant interval_start_ FARPAGE_GUARDED_BY(mutex_){0};
  uint32_t lines_ FARPAGE_GUARDED_BY(mutex_) = 0;
  uint64_t held_back_ FARPAGE_GUARDED_BY(mutex_) = 0;
};

}  // namespace farpage::rdma
