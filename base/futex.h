// futex(2) on a 32-bit word.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>

#include "base/timespec.h"

namespace farpage {

enum class FutexScope : int {
  kProcess = FUTEX_PRIVATE_FLAG,
  kShared = 0,  // the word is in memory that several processes map
};

// Waits until a wake, a signal or the timeout; not at all if the word is not `seen`.
inline void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, Nanoseconds timeout,
                       FutexScope scope = FutexScope::kProcess) {
  const timespec time = timespec_of(timeout);
  (void)::syscall(SYS_futex, &word, FUTEX_WAIT | static_cast<int>(scope), seen, &time, nullptr, 0);
}

// Wakes all waiting threads.
inline void futex_wake(std::atomic<uint32_t>& word, FutexScope scope = FutexScope::kProcess) {
  (void)::syscall(SYS_futex, &word, FUTEX_WAKE | static_cast<int>(scope), INT_MAX, nullptr, nullptr,
                  0);
}

}  // namespace farpage
