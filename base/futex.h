// futex(2) on a 32-bit word of this process.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <ctime>

#include "base/clock.h"

namespace farpage {

// Waits until a wake, a signal or the timeout; not at all if the word is not `seen`.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, Nanoseconds timeout) {
  const auto seconds = std::chrono::duration_cast<Seconds>(timeout);
  const timespec time{.tv_sec = seconds.count(), .tv_nsec = (timeout - seconds).count()};
  (void)::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, &time, nullptr, 0);
}

// Wakes all waiting threads.
inline void futex_wake(std::atomic<uint32_t>& word) {
  (void)::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace farpage
