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

void EvictionPriority::set(Level level) {
  level_.store(level, std::memory_order_seq_cst);
  apply();
}

// Of concurrent calls the last one applies the value that was set last.
void EvictionPriority::apply() {
  Level level = Level::kUsual;
  do {
    level = level_.load(std::memory_order_seq_cst);
    for (size_t i = 0; i < count_.load(std::memory_order_acquire); ++i) {
      const Thread& thread = threads_[i];
      // RLIMIT_NICE may allow less than that.
      if (level == Level::kAhead && set_niceness(thread.id, thread.usual - kAheadBy)) continue;
      (void)set_niceness(thread.id, level == Level::kBack ? kMostNice : thread.usual);
    }
  } while (level_.load(std::memory_order_seq_cst) != level);
}

}  // namespace farpage::pager
