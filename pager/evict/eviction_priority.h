// EvictionPriority: eviction runs at the lowest priority (nice 19) while there is room, and at the
// priority of the process when room runs short or a thread waits.
//
// With few CPUs eviction competes with the program. On CFS (Linux before 6.6) a thread that slept
// for long has a credit of half a scheduling period when it wakes, and its yields have no effect
// until the credit is used up: in a trace, a program whose fault had been answered waited 2 to 8 ms
// for the evictor and the target's agent. At nice 19 the credit is used up 68 times as fast, and
// eviction runs while the program waits for its READs.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>

namespace farpage::pager {

// Threads: any, also in signal handlers, except add() and step_back(): the evictor's.
class EvictionPriority {
 public:
  // Adds a thread that evicts: at most two, the evictor and the target's agent. Has no effect where
  // this process could not raise the priority again (neither CAP_SYS_NICE nor RLIMIT_NICE).
  void add(pid_t thread);
  // To nice 19.
  void step_back() {
    if (!is_back_.load(std::memory_order_relaxed)) set(true);
  }
  // Restores the priorities. Costs one load if they are already restored.
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
