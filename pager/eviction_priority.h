// EvictionPriority: eviction runs behind all other threads (nice 19) while there is room, and as
// the process does when room runs short or somebody waits.
//
// It has a CPU of its own only where there are enough. On CFS (Linux before 6.6) a thread that
// slept for long is ahead of the others by half a scheduling period when it wakes, and yields in
// vain until that is used up: traced, a program whose fault had been answered waited 2 to 8 ms for
// the evictor and the target's agent. At nice 19 that is used up 68 times as fast, and eviction
// gets the gaps that the program leaves while its READs are on their way.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>

namespace farpage::pager {

// Threads: any, also in signal handlers, but for add() and step_back(): the evictor's.
class EvictionPriority {
 public:
  // Who evicts: two at most, the evictor itself and the target's agent. Without effect where this
  // process may not take that back (neither CAP_SYS_NICE nor RLIMIT_NICE).
  void add(pid_t thread);
  // To nice 19.
  void step_back() {
    if (!is_back_.load(std::memory_order_relaxed)) set(true);
  }
  // To where they were. Costs a load while they are there.
  void come_forward() {
    if (is_back_.load(std::memory_order_relaxed)) set(false);
  }

 private:
  struct Thread {
    pid_t id = 0;
    int usual = 0;
  };
  void set(bool back);
  void apply();

  std::array<Thread, 2> threads_;
  std::atomic<size_t> count_{0};  // release: the threads before are complete
  std::atomic<bool> is_back_{false};
};

}  // namespace farpage::pager
