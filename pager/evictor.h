// Evictor: who keeps the resident pages under the budget: a thread, and where faults are resolved
// in the faulting thread, that thread too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "pager/core.h"
#include "pager/eviction_batch.h"

namespace farpage::pager {

// Threads: one of its own; all calls from any. help() is not for a signal handler that may
// interrupt help().
class Evictor {
 public:
  // `paused`: until the first resume().
  Evictor(Core& core, LinkPort& port, bool paused);
  ~Evictor();

  const EvictorStats& stats() const { return batch_.stats(); }

  // A little of the work, without waiting: for a thread whose READ is on its way, on whose CPU it
  // interrupts nobody. Does nothing while somebody else is at it.
  void help();

  // Returns when nothing is being evicted; nothing will be until as many resume() as pause().
  void pause();
  void resume();

 private:
  // A thread that helps is kept from its own work so long.
  static constexpr EvictionBatch::Size kHelp{16, 16, 0};
  // Where nothing can be evicted, before it is tried again.
  static constexpr Milliseconds kRest{1};
  // One of two replicas is given up after a second without it, and that is no cause for a word.
  static constexpr Seconds kStuck{2};
  // What a thread that helps has begun rests half-way for so long at most, if it faults no more.
  static constexpr Milliseconds kHelpersRest{100};
  // All that this thread waits for wakes it. Each waking that finds nothing would cost some fault a
  // switch.
  static constexpr Milliseconds kLook{5000};

  void run();
  bool wait_while_paused();
  void step_back();
  // One batch. False: there was nothing to take, or nothing could be written back.
  bool evict_batch();
  void rest();

  Core& core_;
  std::mutex turn_;  // of who uses the next two, and the port
  EvictionBatch batch_;
  Instant rests_until_{0};  // who helps
  bool agent_known_ = false;
  // In a row that freed nothing, and since when.
  size_t stuck_batches_ = 0;
  Instant stuck_since_{0};
  bool stuck_said_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  int pauses_;           // guarded by mutex_
  bool paused_ = false;  // guarded by mutex_
  std::atomic<bool> pause_hint_;
  std::jthread thread_;
};

}  // namespace farpage::pager
