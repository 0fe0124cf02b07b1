// Pressure: what the evictor's thread sleeps on: the budgets of all targets signal it. And the way
// back: whom they tell that there may be room.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "base/clock.h"

namespace farpage::pager {

// Threads: any; one waits.
class Pressure {
 public:
  // A target is above its mark, or a thread finds no room. One atomic addition, and a system call
  // only while the evictor sleeps.
  void signal();
  // Sleeps until the next signal() or the timeout. Returns at once if there was a signal() since
  // seen() returned `seen`: look for work in between.
  uint32_t seen() const { return sequence_.load(std::memory_order_seq_cst); }
  void wait(uint32_t seen, Nanoseconds timeout);

  // Wakes these fault workers (bits), which wait for room. Never waits. Set before the first budget
  // is used.
  std::function<void(uint64_t workers)> on_room{};

 private:
  alignas(64) std::atomic<uint32_t> sequence_{0};  // futex
  std::atomic<uint32_t> sleeps_{0};
};

}  // namespace farpage::pager
