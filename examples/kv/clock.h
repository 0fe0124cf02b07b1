// The source of time, replaceable so that tests of expiry need not wait.
#pragma once

#include <chrono>

namespace kv {

using Milliseconds = std::chrono::milliseconds;

// Time since some fixed point; monotonic. Threads: any.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Milliseconds now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  Milliseconds now() const override {
    return std::chrono::duration_cast<Milliseconds>(
        std::chrono::steady_clock::now().time_since_epoch());
  }
};

}  // namespace kv
