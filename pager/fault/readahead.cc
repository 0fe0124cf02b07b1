#include "pager/fault/readahead.h"

#include <pthread.h>

#include <array>

namespace farpage::pager {
namespace {

// Waits for the end of an eviction: the page may be remote then.
PageState settled_state(const Target& target, PageIndex page) {
  PageState state = target.table.load(page).state();
  while ((state == PageState::kEvicting || state == PageState::kDropping) &&
         !target.closing.load(std::memory_order_acquire)) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    state = target.table.load(page).state();
  }
  return state;
}

}  // namespace

Readahead::Readahead() : thread_([this] { run(); }) {}

Readahead::~Readahead() {
  const MutexLock lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

void Readahead::request(Target& target, uffd::PageRun run) {
  const MutexLock lock(mutex_);
  wanted_[&target].push(run);
  changed_.notify_all();
}

void Readahead::forget(Target& target, uffd::PageRun run) {
  const MutexLock lock(mutex_);
  const auto entry = wanted_.find(&target);
  if (entry == wanted_.end()) return;
  entry->second.forget(run);
  if (entry->second.empty()) wanted_.erase(entry);
}

void Readahead::remove(Target& target) {
  MutexLock lock(mutex_);
  wanted_.erase(&target);
  changed_.wait(lock, [&]() FARPAGE_REQUIRES(mutex_) { return reads_ != &target; });
}

void Readahead::run() {
  (void)pthread_setname_np(pthread_self(), "fp-readahead");
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this]() FARPAGE_REQUIRES(mutex_) { return stop_ || !wanted_.empty(); });
    if (stop_) return;
    auto entry = wanted_.upper_bound(last_);
    if (entry == wanted_.end()) entry = wanted_.begin();
    Target& target = *entry->first;
    last_ = reads_ = &target;
    // One by one, so that forget() reaches all but the page in flight.
    const auto run = entry->second.take(1);
    if (entry->second.empty()) wanted_.erase(entry);
    lock.unlock();
    if (run) bring_in(target, run->first);
    lock.lock();
    reads_ = nullptr;
    changed_.notify_all();
  }
}

void Readahead::bring_in(Target& target, PageIndex page) {
  // Resident pages, and pages that were never written, need no fetch.
  if (settled_state(target, page) != PageState::kRemote || target.budget.above_high() ||
      target.budget.is_full())
    return;
  std::array<std::byte, kPageBytes> unused;
  (void)target.space.read({&page, 1}, unused);  // a lost or closed page is no error here
}

}  // namespace farpage::pager
