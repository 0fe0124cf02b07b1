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
  static constexpr uint32_t kMaxLinesPerWindow = 8;
  static constexpr Nanoseconds kWindow = Seconds(10);

  // The number of lines suppressed since the last one; nullopt if no line may be written now.
  std::optional<uint64_t> allow(Instant now);

 private:
  Mutex mutex_;
  Instant window_start_ FARPAGE_GUARDED_BY(mutex_){0};
  uint32_t lines_ FARPAGE_GUARDED_BY(mutex_) = 0;
  uint64_t held_back_ FARPAGE_GUARDED_BY(mutex_) = 0;
};

}  // namespace farpage::rdma
