// EvictionPriority: eviction runs at the lowest priority (nice 19) while there is room, at the
// priority of the process when room runs short or a thread waits, and above it while several
// processes need the one evictor: it would otherwise have the CPU time of one against all of them.
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
#include <cstdint>

namespace farpage::pager {

// Threads: any, also in signal handlers, except add(), step_back() and go_ahead(): the evictor's.
class EvictionPriority {
 public:
  // Adds a thread that evicts: at most two, the evictor and the target's agent. Has no effect where
  // this process could not raise the priority again (neither CAP_SYS_NICE nor RLIMIT_NICE).
  void add(pid_t thread);
  // To nice 19.
  void step_back() {
    if (level() != Level::kBack) set(Level::kBack);
  }
  // Ends step_back(). Costs two loads if it has ended.
  void come_forward() {
    if (!was_needed_.load(std::memory_order_relaxed))
      was_needed_.store(true, std::memory_order_relaxed);
    if (level() == Level::kBack) set(Level::kUsual);
  }
  // Was there a come_forward() since the last call?
  bool was_needed() { return was_needed_.exchange(false, std::memory_order_relaxed); }
  // kAheadBy above the usual priority; false: ends that, but not step_back().
  void go_ahead(bool ahead) {
    if (ahead != (level() == Level::kAhead)) set(ahead ? Level::kAhead : Level::kUsual);
  }

 private:
  static constexpr int kAheadBy = 10;  // nine times the share of the CPU
  enum class Level : uint8_t { kUsual, kBack, kAhead };
  struct Thread {
    pid_t id = 0;
    int usual = 0;
  };
  Level level() const { return level_.load(std::memory_order_relaxed); }
  void set(Level level);
  void apply();

  std::array<Thread, 2> threads_;
  std::atomic<size_t> count_{0};  // release: the threads before are complete
  std::atomic<Level> level_{Level::kUsual};
  std::atomic<bool> was_needed_{false};
};

}  // namespace farpage::pager
