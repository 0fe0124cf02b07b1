// Budget: how many pages may be resident, and who waits for room.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"

namespace farpage::pager {

// Threads: any. Invariant: used() exceeds limit() only by what take_anyway() took, and by what was
// taken while the limit was lifted.
class Budget {
 public:
  Budget(uint64_t limit_pages, uint64_t high_pages, uint64_t low_pages)
      : limit_(limit_pages), high_(high_pages), low_(low_pages) {}

  // One page more, if there is room, or while the limit is lifted.
  bool try_take();
  // One page more, room or not: for a fault of the evictor itself, who would wait for its own work.
  void take_anyway(uint64_t pages = 1) { used_.fetch_add(pages, std::memory_order_relaxed); }
  // As many of `pages` as there is room for below the high-water mark: for what nobody waits for.
  uint32_t take_spare(uint32_t pages);
  void give_back(uint64_t pages);
  // While nothing can be evicted (a fork is under way), no fault may wait for room: it could be a
  // fault of whoever has to finish first. Calls nest.
  void lift_limit() {
    lifted_.fetch_add(1, std::memory_order_relaxed);
    interrupt();
  }
  void restore_limit() { lifted_.fetch_sub(1, std::memory_order_relaxed); }

  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t limit() const { return limit_; }
  bool above_high() const { return used() > high_; }
  bool above_low() const { return used() > low_; }

  // Fault workers: sleeps until some pages were given back, or the timeout.
  void wait_for_room(Nanoseconds timeout);
  // Evictor: sleeps until used() is above the high-water mark, somebody waits, or the timeout.
  void wait_for_pressure(Nanoseconds timeout);
  bool has_waiters() const { return room_waiters_.load(std::memory_order_relaxed) != 0; }
  // Ends the waits (shutdown, a hint).
  void interrupt();

 private:
  void signal_pressure();

  const uint64_t limit_;
  const uint64_t high_;
  const uint64_t low_;
  std::atomic<uint32_t> lifted_{0};
  alignas(64) std::atomic<uint64_t> used_{0};
  alignas(64) std::atomic<uint32_t> room_sequence_{0};  // futex of the fault workers
  std::atomic<uint32_t> room_waiters_{0};
  alignas(64) std::atomic<uint32_t> pressure_sequence_{0};  // futex of the evictor
  std::atomic<uint32_t> evictor_sleeps_{0};
};

}  // namespace farpage::pager
