// Budget: how many pages may be resident, and who waits for room.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/clock.h"

namespace farpage::pager {

// The water marks move with the limit. What is here already when the limit is lowered, or when a
// child of fork begins with more than its limit, leaves at the evictor's pace, and a fault that
// waited for all of that would miss its deadline. So a ceiling comes down in place of the limit: of
// the room that an eviction makes, faults get half.
//
// Threads: any.
// Invariants:
//  1. used() exceeds the ceiling only by what take_anyway() took, and by what was taken while the
//     limit was lifted or while the ceiling was higher;
//  2. the ceiling is the limit, except from when more than that is used (after resize(), inherit()
//     or restore_limit()) until no more is used than the limit.
class Budget {
 public:
  // Eviction starts above `high_percent` of the limit and goes on down to `low_percent`: 0 to 100.
  // The evictor's thread is woken above `pressing_percent`: more than `high_percent` where threads
  // that fault evict, too, while they wait.
  Budget(uint64_t limit_pages, uint32_t high_percent, uint32_t low_percent,
         uint32_t pressing_percent);
  Budget(uint64_t limit_pages, uint32_t high_percent, uint32_t low_percent)
      : Budget(limit_pages, high_percent, low_percent, high_percent) {}

  // One page more, if there is room, or while the limit is lifted. Wakes the evictor only where it
  // fails: else it would run before the READ is posted, on this CPU. See nudge().
  bool try_take();
  // One page more, room or not: for a fault of the evictor itself, who would wait for its own work.
  void take_anyway(uint64_t pages = 1) { used_.fetch_add(pages, std::memory_order_relaxed); }
  // As many of `pages` as there is room for: for what nobody waits for, so that faults keep half of
  // the room above the high-water mark.
  uint32_t take_spare(uint32_t pages);
  // Wakes the evictor where it is_pressing(): for who has taken pages, once that keeps no fault
  // waiting.
  void nudge() {
    if (is_pressing()) signal_pressure();
  }
  void give_back(uint64_t pages);
  // The same, by the evictor.
  void evicted(uint64_t pages);
  // So many are here from the beginning, whatever the limit.
  void inherit(uint64_t pages);
  // While nothing can be evicted (a fork is under way), no fault may wait for room: it could be a
  // fault of whoever has to finish first. Calls nest.
  void lift_limit() {
    lifted_.fetch_add(1, std::memory_order_relaxed);
    interrupt();
  }
  void restore_limit();
  // Another limit from now on. Wakes those who wait for room, and the evictor.
  void resize(uint64_t limit_pages);

  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  bool above_high() const { return used() > high_.load(std::memory_order_relaxed); }
  bool is_pressing() const { return used() > pressing_.load(std::memory_order_relaxed); }
  // Of the room above the high-water mark half is used up.
  bool is_short() const { return used() > half_of_room(); }
  bool above_low() const { return used() > low_.load(std::memory_order_relaxed); }

  // Fault workers: sleeps until some pages were given back, or the timeout.
  void wait_for_room(Nanoseconds timeout);
  // Evictor: sleeps until nudge() finds that it is_pressing(), somebody has no room, interrupt(),
  // or the timeout; not at all where one of them has happened since pressure_seen() gave `seen`.
  uint32_t pressure_seen() const { return pressure_sequence_.load(std::memory_order_seq_cst); }
  void wait_for_pressure(uint32_t seen, Nanoseconds timeout);
  bool has_waiters() const { return room_waiters_.load(std::memory_order_relaxed) != 0; }
  // Ends the waits (shutdown, a hint).
  void interrupt();

 private:
  void signal_pressure();
  // Half-way from the high-water mark to the limit, which may be below it while it is lowered.
  uint64_t half_of_room() const;
  // Pages used afterwards.
  uint64_t take_off(uint64_t pages);
  void wake_waiters();
  // To no less than the limit. Does nothing where it is that already.
  void lower_ceiling(uint64_t used, uint64_t room);

  const uint32_t high_percent_;
  const uint32_t low_percent_;
  const uint32_t pressing_percent_;
  std::mutex resize_mutex_;  // of who writes the next five
  std::atomic<uint64_t> limit_{0};
  std::atomic<uint64_t> ceiling_{0};
  std::atomic<uint64_t> high_{0};
  std::atomic<uint64_t> low_{0};
  std::atomic<uint64_t> pressing_{0};
  std::atomic<uint32_t> lifted_{0};
  alignas(64) std::atomic<uint64_t> used_{0};
  alignas(64) std::atomic<uint32_t> room_sequence_{0};  // futex of the fault workers
  std::atomic<uint32_t> room_waiters_{0};
  alignas(64) std::atomic<uint32_t> pressure_sequence_{0};  // futex of the evictor
  std::atomic<uint32_t> evictor_sleeps_{0};
};

}  // namespace farpage::pager
