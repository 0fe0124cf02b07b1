// Evictor: keeps the resident pages within the budget. It has a thread; where the faulting thread
// resolves its faults, that thread evicts too.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "pager/core.h"
#include "pager/evict/eviction_batch.h"

namespace farpage::pager {

// Threads: one of its own; all calls from any. help() is not for a signal handler that may
// interrupt help().
class Evictor {
 public:
  // `paused`: until the first resume().
  Evictor(Core& core, LinkPort& port, bool paused);
  ~Evictor();

  const EvictorStats& stats() const { return batch_.stats(); }

  // Evicts a few pages without waiting, for a thread whose READ is in flight and whose CPU is free
  // meanwhile. Does nothing while another thread evicts.
  void help();

  // Returns when no eviction is in progress; none starts until every pause() has had its resume().
  void pause();
  void resume();

 private:
  // The batch of help(), which delays the thread's own work.
  static constexpr EvictionBatch::Size kHelp{16, 16, 0};
  // The pause before a retry when nothing can be evicted.
  static constexpr Milliseconds kRest{1};
  // Longer than the second after which one of two replicas is given up, which needs no log line.
  static constexpr Seconds kStuck{2};
  // A batch that help() started waits at most this long if its thread has no further fault.
  static constexpr Milliseconds kHelpersRest{100};
  // Every condition that this thread waits for wakes it. Each wake-up without work would cost some
  // fault a context switch.
  static constexpr Milliseconds kLook{5000};

  void run();
  bool wait_while_paused();
  void step_back();
  // One batch. False: there was nothing to take, or nothing could be written back.
  bool evict_batch();
  void rest();

  Core& core_;
  std::mutex turn_;  // guards the next two, and the port
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
