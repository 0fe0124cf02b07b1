// WaitPool: threads for calls that may wait (for a page in use, for an eviction, for the
// coordinator), so that the control thread never does.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

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

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;  // guarded by mutex_
  size_t idle_ = 0;                          // guarded by mutex_: threads
  bool stopping_ = false;                    // guarded by mutex_
  std::vector<std::jthread> threads_;        // guarded by mutex_
};

}  // namespace farpage::serve
