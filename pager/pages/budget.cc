#include "pager/pages/budget.h"

#include <algorithm>

#include "base/check.h"
#include "base/futex.h"

namespace farpage::pager {

Budget::Budget(Pressure& pressure, uint64_t limit_pages, Marks marks)
    : pressure_(pressure), marks_(marks), narrowing_(marks.adaptive ? kNarrowest : 0) {
  resize(limit_pages);
}

bool Budget::try_take(Instant since) {
  uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (!has_room(used, since) && lifted_.load(std::memory_order_relaxed) == 0) {
      was_short_.store(true, std::memory_order_relaxed);
      pressure_.signal();
      return false;
    }
  } while (!used_.compare_exchange_weak(used, used + 1, std::memory_order_relaxed));
  return true;
}

void Budget::claim(Instant since) {
  int64_t oldest = claim_.load(std::memory_order_relaxed);
  while (since.count() < oldest &&
         !claim_.compare_exchange_weak(oldest, since.count(), std::memory_order_relaxed)) {
  }
}

// What it has not taken is room for the others.
void Budget::drop_claim(Instant since) {
  int64_t own = since.count();
  if (claim_.compare_exchange_strong(own, kNoClaim, std::memory_order_seq_cst)) wake_waiters();
}

uint64_t Budget::half_of_room() const {
  const uint64_t high = high_.load(std::memory_order_relaxed);
  const uint64_t limit = limit_.load(std::memory_order_relaxed);
  return limit > high ? high + (limit - high) / 2 : limit;
}

uint32_t Budget::take_spare(uint32_t pages) {
  uint64_t used = used_.load(std::memory_order_relaxed);
  const uint64_t half = half_of_room();
  const uint64_t limit = limit_.load(std::memory_order_relaxed);
  uint32_t taken = 0;
  do {
    // Where eviction does not keep up, half of what is left.
    const uint64_t end =
        used < limit && !has_claim() ? std::max(half, used + (limit - used) / 2) : 0;
    taken = used >= end ? 0 : static_cast<uint32_t>(std::min<uint64_t>(pages, end - used));
    if (taken < pages) was_short_.store(true, std::memory_order_relaxed);
    if (taken == 0) return 0;
  } while (!used_.compare_exchange_weak(used, used + taken, std::memory_order_relaxed));
  return taken;
}

uint64_t Budget::take_off(uint64_t pages) {
  const uint64_t before = used_.fetch_sub(pages, std::memory_order_seq_cst);
  FARPAGE_CHECK(before >= pages, "%llu pages given back of %llu",
                static_cast<unsigned long long>(pages), static_cast<unsigned long long>(before));
  return before - pages;
}

void Budget::give_back(uint64_t pages) {
  if (pages == 0) return;
  const uint64_t used = take_off(pages);
  if (used <= limit()) lower_ceiling(used, 0);
  wake_waiters();
}

void Budget::evicted(uint64_t pages) {
  if (pages == 0) return;
  lower_ceiling(take_off(pages), (pages + 1) / 2);
  wake_waiters();
}

void Budget::inherit(uint64_t pages) {
  const MutexLock lock(resize_mutex_);
  const uint64_t used = used_.fetch_add(pages, std::memory_order_relaxed) + pages;
  ceiling_.store(std::max(limit(), used), std::memory_order_relaxed);
}

void Budget::restore_limit() {
  const MutexLock lock(resize_mutex_);
  const uint64_t ceiling = ceiling_.load(std::memory_order_relaxed);
  ceiling_.store(std::max(ceiling, used()), std::memory_order_relaxed);
  lifted_.fetch_sub(1, std::memory_order_relaxed);
}

void Budget::wake_waiters() {
  // Pairs with the waiter's increment of room_waiters_ before it reads the sequence again.
  room_sequence_.fetch_add(1, std::memory_order_seq_cst);
  if (room_waiters_.load(std::memory_order_seq_cst) != 0) futex_wake(room_sequence_);
  ring_workers();
}

void Budget::ring_workers() {
  if (room_workers_.load(std::memory_order_seq_cst) == 0) return;
  if (const uint64_t workers = room_workers_.exchange(0, std::memory_order_seq_cst); workers != 0)
    pressure_.on_room(workers);
}

void Budget::resize(uint64_t limit_pages) {
  const MutexLock lock(resize_mutex_);
  limit_.store(limit_pages, std::memory_order_relaxed);
  set_marks(limit_pages);
  const uint64_t here = std::min(used(), ceiling_.load(std::memory_order_relaxed));
  ceiling_.store(std::max(limit_pages, here), std::memory_order_relaxed);
  interrupt();  // a thread that sees its sequences sees the stores above
}

uint64_t Budget::mark(uint64_t limit, uint32_t percent, uint32_t narrowing) {
  const uint64_t most = limit - limit * percent / 100;  // of room
  return limit - std::max(most >> narrowing, std::min(most, kLeastRoom));
}

void Budget::set_marks(uint64_t limit) {
  const uint64_t nearest = limit - std::min(limit, marks_.most_room);
  const uint64_t high = std::max(nearest, mark(limit, marks_.high, narrowing_));
  high_.store(high, std::memory_order_relaxed);
  low_.store(std::max(nearest, mark(limit, marks_.low, narrowing_)), std::memory_order_relaxed);
  // The same part of the room, however narrow that is.
  const uint64_t room =
      marks_.high == 100 ? 0 : (limit - high) * (100 - marks_.pressing) / (100 - marks_.high);
  pressing_.store(limit - room, std::memory_order_relaxed);
}

void Budget::adapt_room(bool ended) {
  if (!marks_.adaptive || (!ended && !was_short_.load(std::memory_order_relaxed))) return;
  const bool was_short = was_short_.exchange(false, std::memory_order_relaxed);
  const MutexLock lock(resize_mutex_);
  quiet_ends_ = was_short ? 0 : quiet_ends_ + 1;
  if (was_short && narrowing_ > 0) {
    --narrowing_;
  } else if (quiet_ends_ == kQuietEnds) {
    quiet_ends_ = 0;
    if (narrowing_ < kNarrowest) ++narrowing_;
  } else {
    return;
  }
  set_marks(limit());
}

void Budget::lower_ceiling(uint64_t used, uint64_t room) {
  if (ceiling_.load(std::memory_order_relaxed) <= limit()) return;
  const MutexLock lock(resize_mutex_);
  const uint64_t ceiling = ceiling_.load(std::memory_order_relaxed);
  const uint64_t wanted = used <= limit() ? limit() : std::min(ceiling, used + room);
  ceiling_.store(std::max(limit(), wanted), std::memory_order_relaxed);
}

void Budget::wait_for_room(Nanoseconds timeout, bool others, Instant since) {
  const uint32_t seen = room_sequence_.load(std::memory_order_seq_cst);
  room_waiters_.fetch_add(1, std::memory_order_seq_cst);
  pressure_.signal();
  if (others || !has_room(used_.load(std::memory_order_seq_cst), since))
    futex_wait(room_sequence_, seen, timeout);
  room_waiters_.fetch_sub(1, std::memory_order_relaxed);
}

bool Budget::begin_room_wait(uint32_t worker, Instant since) {
  // As in wait_for_room(): either this sees the pages that are given back, or that sees the bit.
  room_workers_.fetch_or(uint64_t{1} << worker, std::memory_order_seq_cst);
  pressure_.signal();
  return !has_room(used_.load(std::memory_order_seq_cst), since) && !is_lifted();
}

void Budget::end_room_wait(uint32_t worker) {
  room_workers_.fetch_and(~(uint64_t{1} << worker), std::memory_order_relaxed);
}

void Budget::interrupt() {
  room_sequence_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(room_sequence_);
  ring_workers();
  pressure_.signal();
}

}  // namespace farpage::pager
