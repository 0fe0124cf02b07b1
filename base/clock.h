// Clock: the source of time, replaceable so that tests of leases and deadlines need not wait.
#pragma once

#include <atomic>
#include <chrono>

namespace farpage {

using Nanoseconds = std::chrono::nanoseconds;
using Milliseconds = std::chrono::milliseconds;
using Seconds = std::chrono::seconds;

// Time since some fixed point of this boot; monotonic.
using Instant = Nanoseconds;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant now() const = 0;
};

// CLOCK_MONOTONIC. Threads: any.
class SteadyClock final : public Clock {
 public:
  Instant now() const override;
  // For code on the fault path that measures time and never needs a fake clock.
  static Instant read();
};

// A clock that moves only when advanced, for tests. Threads: any.
class ManualClock final : public Clock {
 public:
  Instant now() const override { return Instant(now_ns_.load(std::memory_order_acquire)); }
  void advance(Nanoseconds by) { now_ns_.fetch_add(by.count(), std::memory_order_acq_rel); }

 private:
  std::atomic<int64_t> now_ns_{1'000'000'000};
};

}  // namespace farpage
