#include "pager/fault/readahead.h"

#include <pthread.h>

#include <array>

namespace farpage::pager {

Readahead::Readahead(Core& core) : core_(core), thread_([this] { run(); }) {}

Readahead::~Readahead() {
  const std::lock_guard lock(mutex_);
  stop_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void Readahead::request(uffd::PageRun run) {
  const std::lock_guard lock(mutex_);
  wanted_.push(run);
  changed_.notify_all();
}

void Readahead::forget(uffd::PageRun run) {
  const std::lock_guard lock(mutex_);
  wanted_.forget(run);
}

void Readahead::run() {
  (void)pthread_setname_np(pthread_self(), "fp-readahead");
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock,
                  [this] { return stop_.load(std::memory_order_acquire) || !wanted_.empty(); });
    if (stop_.load(std::memory_order_acquire)) return;
    // One by one, so that forget() reaches all but the page in flight.
    const auto run = wanted_.take(1);
    lock.unlock();
    if (run) bring_in(run->first);
  }
}

// Waits for the end of an eviction: the page may be remote then.
PageState Readahead::settled_state(PageIndex page) const {
  PageState state = core_.table.load(page).state();
  while ((state == PageState::kEvicting || state == PageState::kDropping) &&
         !stop_.load(std::memory_order_acquire)) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    state = core_.table.load(page).state();
  }
  return state;
}

void Readahead::bring_in(PageIndex page) {
  // Resident pages, and pages that were never written, need no fetch.
  if (settled_state(page) != PageState::kRemote || core_.budget.above_high()) return;
  std::array<std::byte, kPageBytes> unused;
  (void)core_.space.read({&page, 1}, unused);  // a lost or closed page is no error here
}

}  // namespace farpage::pager
