#include "serve/wait_pool.h"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "base/log.h"

namespace farpage::serve {

WaitPool::~WaitPool() {
  std::vector<std::jthread> threads;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    threads = std::move(threads_);
  }
  changed_.notify_all();
}

void WaitPool::run(std::function<void()> call) {
  const MutexLock lock(mutex_);
  calls_.push_back(std::move(call));
  if (calls_.size() <= idle_) {
    changed_.notify_one();
    return;
  }
  try {
    threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    // One of the others takes the call later.
    log::error("run: no_thread reason=\"{}\" (raise the limit of processes: ulimit -u)",
               error.what());
  }
}

void WaitPool::work() {
  (void)pthread_setname_np(pthread_self(), "fp-wait");
  MutexLock lock(mutex_);
  while (true) {
    ++idle_;
    changed_.wait(lock, [this]() FARPAGE_REQUIRES(mutex_) { return stopping_ || !calls_.empty(); });
    --idle_;
    if (stopping_) return;
    const std::function<void()> call = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    call();
    lock.lock();
  }
}

}  // namespace farpage::serve
