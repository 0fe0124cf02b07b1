// Budget: how many pages may be resident, and the threads that wait for room.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "base/clock.h"
#include "base/mutex.h"
#include "pager/pages/pressure.h"

namespace farpage::pager {

// The water marks move with the limit and, if they are adaptive, with need. The room above them is
// used by no page, and in a loop over slightly more than the budget each page of it is a miss in
// each turn. So the room is an eighth of the widest until a fault, or a walk, finds none; then it
// doubles, and after eviction has ended often enough without that it halves again.
//
// When the limit is lowered, or a child of fork starts with more pages than its limit, the excess
// pages are evicted at the evictor's pace. A fault that waited for all of that would miss its
// deadline. So a ceiling is lowered gradually instead of the limit: faults get half of the room
// that evictions make.
//
// Where a page leaves only now and then, later faults could take each before the one that waits: it
// would wait for ever. So a fault that has waited long claims the next page. The oldest has the
// claim.
//
// Threads: any.
// Invariants:
//  1. used() exceeds the ceiling only by what take_anyway() took, and by what was taken while the
//     limit was lifted or while the ceiling was higher;
//  2. the ceiling is the limit, except from when more than that is used (after resize(), inherit()
//     or restore_limit()) until no more is used than the limit.
class Budget {
 public:
  static constexpr uint32_t kNarrowest = 3;  // the room is 1 / 2^3 of that of the options
  // Eviction starts above `high` percent of the limit and continues down to `low`: 0 to 100. The
  // evictor's thread is woken above `pressing`, which is higher than `high` where faulting threads
  // also evict while they wait. Adaptive: these are the marks with the widest room.
  struct Marks {
    uint32_t high = 0;
    uint32_t low = 0;
    uint32_t pressing = 0;
    bool adaptive = false;
    uint64_t most_room = UINT64_MAX;  // pages, above each of them
  };
  // `pressure`: the evictor's, which outlives this.
  Budget(Pressure& pressure, uint64_t limit_pages, Marks marks);
  Budget(Pressure& pressure, uint64_t limit_pages, uint32_t high, uint32_t low)
      : Budget(pressure, limit_pages, Marks{high, low, high}) {}

  // Takes one page, if there is room beside what an older fault claims, or the limit is lifted.
  // Wakes the evictor only on failure: otherwise the evictor would run on this CPU before the READ
  // is posted. See nudge(). `since`: when the fault was read.
  bool try_take(Instant since = Instant{0});
  // For a fault of that time, after each try that failed. Until end_claim(), no later fault and no
  // prefetch takes the last page. Does nothing if an older fault has the claim.
  void claim(Instant since);
  bool has_claim() const { return claim_.load(std::memory_order_relaxed) != kNoClaim; }
  void end_claim(Instant since) {
    if (claim_.load(std::memory_order_relaxed) == since.count()) [[unlikely]]
      drop_claim(since);
  }
  // Takes one page even without room: for a fault of the evictor, which would wait for itself.
  void take_anyway(uint64_t pages = 1) { used_.fetch_add(pages, std::memory_order_relaxed); }
  // Takes as many of `pages` as there is room for, for pages that no thread waits for. Leaves half
  // of the room above the high-water mark to faults; where eviction does not keep up, half of what
  // is left: without it a walk would wait for room at each of its pages.
  uint32_t take_spare(uint32_t pages);
  // Wakes the evictor if is_pressing(). Callers that took pages call it when no fault has to wait
  // for that.
  void nudge() {
    if (is_pressing()) pressure_.signal();
  }
  void give_back(uint64_t pages);
  // The same, by the evictor.
  void evicted(uint64_t pages);
  // The number of pages that are resident from the start, whatever the limit.
  void inherit(uint64_t pages);
  // While eviction is paused (during a fork), no fault may wait for room: the faulting thread could
  // be one that must finish first. Calls nest.
  void lift_limit() {
    lifted_.fetch_add(1, std::memory_order_relaxed);
    interrupt();
  }
  void restore_limit();
  bool is_lifted() const { return lifted_.load(std::memory_order_relaxed) != 0; }
  // Moves the marks. The evictor calls it whenever it looks at the budget. `ended`: it has just
  // come down to the low mark.
  void adapt_room(bool ended);
  // Sets a new limit. Wakes the threads that wait for room, and the evictor.
  void resize(uint64_t limit_pages);

  uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  bool above_high() const { return used() > high_.load(std::memory_order_relaxed); }
  // The next fault finds no room.
  bool is_full() const { return used() >= limit(); }
  bool is_pressing() const { return used() > pressing_.load(std::memory_order_relaxed); }
  // Half of the room above the high-water mark is used up.
  bool nearly_full() const { return used() > half_of_room(); }
  // Pages above the low mark.
  uint64_t excess() const {
    const uint64_t mark = low();
    return used() > mark ? used() - mark : 0;
  }
  bool above_low() const { return used() > low(); }
  uint64_t low() const { return low_.load(std::memory_order_relaxed); }

  // Fault workers: sleeps until some pages were given back, or the timeout. Returns at once if
  // there is room for a fault of `since`, unless the caller needs more than that (`others`).
  void wait_for_room(Nanoseconds timeout, bool others = false, Instant since = Instant{0});
  // The same for a worker that waits for the room of several targets: until end_room_wait(), it is
  // among those that Pressure::on_room wakes, once. False: there is room.
  bool begin_room_wait(uint32_t worker, Instant since = Instant{0});
  void end_room_wait(uint32_t worker);
  bool has_waiters() const {
    return room_waiters_.load(std::memory_order_relaxed) != 0 ||
           room_workers_.load(std::memory_order_relaxed) != 0;
  }
  // Ends the waits (shutdown, a hint).
  void interrupt();

  // Where the mark of `percent` is, for a room of 1 / 2^narrowing: pages.
  static uint64_t mark(uint64_t limit, uint32_t percent, uint32_t narrowing);

 private:
  static constexpr uint64_t kLeastRoom = 8;  // pages; less only where the options allow no more
  static constexpr int64_t kNoClaim = std::numeric_limits<int64_t>::max();
  static constexpr uint32_t kQuietEnds = 16;  // of eviction, before the room becomes narrower

  void set_marks(uint64_t limit) FARPAGE_REQUIRES(resize_mutex_);
  // Half-way from the high-water mark to the limit, which may be below it while it is lowered.
  uint64_t half_of_room() const;
  // Pages used afterwards.
  uint64_t take_off(uint64_t pages);
  // For a fault of `since`, which leaves an older one the page that this claims.
  bool has_room(uint64_t used, Instant since) const {
    const uint64_t claimed = claim_.load(std::memory_order_relaxed) < since.count() ? 1 : 0;
    return used + claimed < ceiling_.load(std::memory_order_relaxed);
  }
  void drop_claim(Instant since);
  void wake_waiters();
  void ring_workers();
  // Not below the limit. Does nothing if the ceiling is there already.
  void lower_ceiling(uint64_t used, uint64_t room);

  Pressure& pressure_;
  const Marks marks_;
  Mutex resize_mutex_;  // guards writes of the next five, and:
  uint32_t narrowing_ FARPAGE_GUARDED_BY(resize_mutex_);
  uint32_t quiet_ends_ FARPAGE_GUARDED_BY(resize_mutex_) = 0;
  std::atomic<uint64_t> limit_{0};
  std::atomic<uint64_t> ceiling_{0};
  std::atomic<uint64_t> high_{0};
  std::atomic<uint64_t> low_{0};
  std::atomic<uint64_t> pressing_{0};
  std::atomic<int64_t> claim_{kNoClaim};  // when that fault was read
  std::atomic<uint32_t> lifted_{0};
  std::atomic<bool> was_short_{false};  // somebody found less room than needed
  alignas(64) std::atomic<uint64_t> used_{0};
  alignas(64) std::atomic<uint32_t> room_sequence_{0};  // futex of the fault workers
  std::atomic<uint32_t> room_waiters_{0};
  std::atomic<uint64_t> room_workers_{0};  // bits: workers that Pressure::on_room has to wake
};

}  // namespace farpage::pager
