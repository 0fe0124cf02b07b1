// Lock: a futex mutex whose holder has all signals blocked.
//
// This makes the interposed functions as safe in a signal handler as the plain system calls: a
// handler cannot interrupt a holder, so it cannot deadlock on the lock.
#pragma once

#include <linux/futex.h>
#include <signal.h>

#include <atomic>

#include "base/thread_annotations.h"
#include "shim/syscalls.h"

namespace farpage::shim {

// All signals blocked in this thread, libc's own two included, until destroyed.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    const uint64_t all = ~uint64_t{0};
    system_call(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before_, sizeof(before_));
  }
  ~SignalsBlocked() {
    system_call(SYS_rt_sigprocmask, SIG_SETMASK, &before_, nullptr, sizeof(before_));
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  uint64_t before_ = 0;
};

// Threads: any. Not recursive. It needs no construction at run time and no destruction, so it works
// before and after those of the program's globals.
class FARPAGE_CAPABILITY("lock") Lock {
 public:
  constexpr Lock() = default;
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  // In a forked child, where the thread that holds the lock does not exist.
  void reset_after_fork() { word_.store(kFree, std::memory_order_relaxed); }

 private:
  friend class Locked;
  enum : uint32_t { kFree, kHeld, kHeldAndWaitedFor };

  void acquire() FARPAGE_ACQUIRE() {
    uint32_t expected = kFree;
    if (word_.compare_exchange_strong(expected, kHeld, std::memory_order_acquire)) {
      return;
    }
    // Pairs with the exchange in release(), which wakes a thread that set kHeldAndWaitedFor.
    while (word_.exchange(kHeldAndWaitedFor, std::memory_order_acquire) != kFree) {
      system_call(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, kHeldAndWaitedFor, nullptr);
    }
  }
  void release() FARPAGE_RELEASE() {
    if (word_.exchange(kFree, std::memory_order_release) == kHeldAndWaitedFor) {
      system_call(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1);
    }
  }

  std::atomic<uint32_t> word_{kFree};
};

// Holds the lock, with signals blocked, until destroyed.
class FARPAGE_SCOPED_CAPABILITY Locked {
 public:
  explicit Locked(Lock& lock) FARPAGE_ACQUIRE(lock) : lock_(lock) { lock_.acquire(); }
  ~Locked() FARPAGE_RELEASE() { lock_.release(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  SignalsBlocked signals_;
  Lock& lock_;
};

}  // namespace farpage::shim
