// Mutex, MutexLock and ConditionVariable: those of the standard library, with annotations that
// clang checks (base/thread_annotations.h).
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/thread_annotations.h"

namespace farpage {

class FARPAGE_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() FARPAGE_ACQUIRE() { mutex_.lock(); }
  void unlock() FARPAGE_RELEASE() { mutex_.unlock(); }
  [[nodiscard]] bool try_lock() FARPAGE_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds the mutex until destroyed. Threads: one.
class FARPAGE_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) FARPAGE_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  // Of a mutex that the caller has locked (try_lock()).
  MutexLock(Mutex& mutex, std::adopt_lock_t adopt) FARPAGE_REQUIRES(mutex)
      : lock_(mutex.mutex_, adopt) {}
  ~MutexLock() FARPAGE_RELEASE() = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  // Around what must not be done under the lock.
  void unlock() FARPAGE_RELEASE() { lock_.unlock(); }
  void lock() FARPAGE_ACQUIRE() { lock_.lock(); }

 private:
  friend class ConditionVariable;
  std::unique_lock<std::mutex> lock_;
};

// Waits release the lock and have it again when they return. Threads: any.
class ConditionVariable {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

  // Until `predicate` holds.
  template <typename Predicate>
  void wait(MutexLock& lock, Predicate predicate) {
    condition_.wait(lock.lock_, std::move(predicate));
  }
  // The same, but no longer than `timeout` of the steady clock; returns what `predicate` returned
  // last.
  template <typename Rep, typename Period, typename Predicate>
  bool wait_for(MutexLock& lock, std::chrono::duration<Rep, Period> timeout, Predicate predicate) {
    return condition_.wait_for(lock.lock_, timeout, std::move(predicate));
  }
  // The same, until that time of the steady clock.
  template <typename Predicate>
  bool wait_until(MutexLock& lock, std::chrono::steady_clock::time_point end, Predicate predicate) {
    return condition_.wait_until(lock.lock_, end, std::move(predicate));
  }

 private:
  std::condition_variable condition_;
};

}  // namespace farpage
