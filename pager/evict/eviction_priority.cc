#include "pager/evict/eviction_priority.h"

#include <sys/resource.h>

#include <cerrno>

#include "base/check.h"

namespace farpage::pager {
namespace {

constexpr int kMostNice = 19;

bool set_niceness(pid_t thread, int niceness) {
  return ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), niceness) == 0;
}

// Tests it with the smallest step: capabilities and limits mean different things in different user
// namespaces. If it fails, the thread keeps this one step of lower priority.
bool may_come_forward(pid_t thread, int usual) {
  return usual < kMostNice && set_niceness(thread, usual + 1) && set_niceness(thread, usual);
}

}  // namespace

void EvictionPriority::add(pid_t thread) {
  const size_t count = count_.load(std::memory_order_relaxed);
  FARPAGE_CHECK(count < threads_.size(), "%zu threads already", count);
  errno = 0;
  const int usual = ::getpriority(PRIO_PROCESS, static_cast<id_t>(thread));
  if (errno != 0 || !may_come_forward(thread, usual)) return;
  threads_[count] = {thread, usual};
  count_.store(count + 1, std::memory_order_release);
  apply();
}

void EvictionPriority::set(bool back) {
  is_back_.store(back, std::memory_order_seq_cst);
  apply();
}

// Of concurrent calls the last one applies the value that was set last.
void EvictionPriority::apply() {
  bool back = false;
  do {
    back = is_back_.load(std::memory_order_seq_cst);
    for (size_t i = 0; i < count_.load(std::memory_order_acquire); ++i)
      (void)set_niceness(threads_[i].id, back ? kMostNice : threads_[i].usual);
  } while (is_back_.load(std::memory_order_seq_cst) != back);
}

}  // namespace farpage::pager
