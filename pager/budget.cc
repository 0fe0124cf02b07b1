#include "pager/budget.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#include "base/check.h"

namespace farpage::pager {
namespace {

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, Nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<Seconds>(timeout);
  const timespec time{.tv_sec = seconds.count(), .tv_nsec = (timeout - seconds).count()};
  (void)::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, &time, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  (void)::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

bool Budget::try_take() {
  uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (used >= limit_ && lifted_.load(std::memory_order_relaxed) == 0) {
      signal_pressure();
      return false;
    }
  } while (!used_.compare_exchange_weak(used, used + 1, std::memory_order_relaxed));
  if (used + 1 > high_) signal_pressure();
  return true;
}

uint32_t Budget::take_spare(uint32_t pages) {
  uint64_t used = used_.load(std::memory_order_relaxed);
  uint32_t taken = 0;
  do {
    taken = used >= high_ ? 0 : static_cast<uint32_t>(std::min<uint64_t>(pages, high_ - used));
    if (taken == 0) return 0;
  } while (!used_.compare_exchange_weak(used, used + taken, std::memory_order_relaxed));
  return taken;
}

void Budget::give_back(uint64_t pages) {
  if (pages == 0) return;
  const uint64_t before = used_.fetch_sub(pages, std::memory_order_seq_cst);
  FARPAGE_CHECK(before >= pages, "%llu pages given back of %llu",
                static_cast<unsigned long long>(pages), static_cast<unsigned long long>(before));
  // Pairs with the waiter's increment of room_waiters_ before it looks at the sequence again.
  room_sequence_.fetch_add(1, std::memory_order_seq_cst);
  if (room_waiters_.load(std::memory_order_seq_cst) != 0) futex_wake(room_sequence_);
}

void Budget::wait_for_room(Nanoseconds timeout) {
  const uint32_t seen = room_sequence_.load(std::memory_order_seq_cst);
  room_waiters_.fetch_add(1, std::memory_order_seq_cst);
  signal_pressure();
  if (used_.load(std::memory_order_seq_cst) >= limit_) futex_wait(room_sequence_, seen, timeout);
  room_waiters_.fetch_sub(1, std::memory_order_relaxed);
}

void Budget::signal_pressure() {
  pressure_sequence_.fetch_add(1, std::memory_order_seq_cst);
  if (evictor_sleeps_.load(std::memory_order_seq_cst) != 0) futex_wake(pressure_sequence_);
}

void Budget::wait_for_pressure(Nanoseconds timeout) {
  const uint32_t seen = pressure_sequence_.load(std::memory_order_seq_cst);
  evictor_sleeps_.store(1, std::memory_order_seq_cst);
  if (!above_high() && !has_waiters()) futex_wait(pressure_sequence_, seen, timeout);
  evictor_sleeps_.store(0, std::memory_order_relaxed);
}

void Budget::interrupt() {
  room_sequence_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(room_sequence_);
  signal_pressure();
}

}  // namespace farpage::pager
