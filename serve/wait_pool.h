// WaitPool: threads for calls that may wait (for a page in use, for an eviction, for the
// coordinator), so that the control thread never does.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace farpage::serve {

// It grows when no thread is idle, so a call never waits for another one: with a fixed number of
// threads, some stopped processes could block the requests of all others. Threads stay until the
// end.
//
// Threads: run() from any.
class WaitPool {
 public:
  WaitPool() = default;
  // Waits for the calls that have begun; drops the others.
  ~WaitPool();
  WaitPool(const WaitPool&) = delete;
  WaitPool& operator=(const WaitPool&) = delete;

  void run(std::function<void()> call);

 private:
  void work();

  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<std::function<void()>> calls_ FARPAGE_GUARDED_BY(mutex_);
  size_t idle_ FARPAGE_GUARDED_BY(mutex_) = 0;  // threads
  bool stopping_ FARPAGE_GUARDED_BY(mutex_) = false;
  std::vector<std::jthread> threads_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::serve
