// Evictor: keeps the resident pages of each target within its budget. It has a thread; where the
// faulting thread resolves its faults, that thread evicts too.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "pager/evict/eviction_batch.h"
#include "pager/target.h"

namespace farpage::pager {

// One batch at a time, of one target: those that a thread waits for come first, the others in turn.
// A target that does not drop its pages (it is stopped, or waits for a CPU) delays no other: its
// batch is put aside, and ends when it has.
//
// Threads: one of its own; all calls from any. help() is not for a signal handler that may
// interrupt help().
class Evictor {
 public:
  Evictor(EngineCore& engine, LinkPort& port);
  ~Evictor();

  // Never waits.
  void add(Target& target);
  // Returns when none of its pages is being evicted; none will be. Target::closing is set.
  void remove(Target& target);

  // Evicts a few pages without waiting, for a thread whose READ is in flight and whose CPU is free
  // meanwhile. Does nothing while another thread evicts.
  void help(Target& target);

  // Returns when no page of the target is being evicted; none will be until every pause() has had
  // its resume().
  void pause(Target& target);
  void resume(Target& target);

 private:
  // The batch of help(), which delays the thread's own work.
  static constexpr EvictionBatch::Size kHelp{16, 16, 0};
  // The pause before a retry when nothing can be evicted.
  static constexpr Milliseconds kRest{1};
  static constexpr uint32_t kChoicesInOrder = 4;  // one of so many
  // How long to wait for the end of a drop while no other target needs this thread. A running agent
  // answers in some 10 to 200 us, one that has to wait for a CPU in some ms, a stopped one later.
  static constexpr Milliseconds kAwaitDrop{1};
  static constexpr Milliseconds kSlowDrop{20};
  static constexpr Milliseconds kDropInterval{10};
  // After it was needed. Where little is local that is so at most faults, and each change of
  // priority costs a system call for each thread.
  static constexpr Milliseconds kKeepsPriority{10};
  // Longer than the second after which one of two replicas is given up, which needs no log line.
  static constexpr Seconds kStuck{2};
  // A batch that help() started waits at most this long if its thread has no further fault.
  static constexpr Milliseconds kHelpersRest{100};
  // Every condition that this thread waits for wakes it. Each wake-up without work would cost some
  // fault a context switch.
  static constexpr Milliseconds kLook{5000};

  void run();
  // Runs `work` with turn_ held, before the thread's next batch.
  template <typename Work>
  void in_turn(Work&& work);
  void wait_for_others() const;
  // Ends what is under way for the target. `work` runs in the same turn.
  template <typename Work>
  void settle(Target& target, Work&& work);
  // One batch of the next target that needs it. False: none does; `pause` is how long to wait.
  bool evict_next(Nanoseconds& pause);
  struct Aside {
    Target* target = nullptr;
    std::unique_ptr<EvictionBatch> batch;
    Instant since{0};
  };
  struct Choice {
    Target* target = nullptr;
    bool others_want = false;
    bool some_rest = false;
  };
  Choice choose(Instant now) FARPAGE_REQUIRES(turn_);
  bool wants(Target& target) const FARPAGE_REQUIRES(turn_);
  void step_back(Instant now) FARPAGE_REQUIRES(turn_);
  void take_added() FARPAGE_REQUIRES(turn_);
  void put_aside() FARPAGE_REQUIRES(turn_);
  // Ends batches that were put aside; waits this long for one of them, each in its turn.
  void end_drops(Nanoseconds patience) FARPAGE_REQUIRES(turn_);
  bool all_drop_slowly(Instant now) const FARPAGE_REQUIRES(turn_);
  // One batch. False: there was nothing to take, or nothing could be written back.
  bool evict_batch(Target& target, bool others_want) FARPAGE_REQUIRES(turn_);
  static void note_stuck(Target& target, Instant since);
  static void rest(Target& target);

  EngineCore& engine_;
  LinkPort& port_;
  Mutex turn_;  // guards EvictionState and the port too
  std::unique_ptr<EvictionBatch> batch_ FARPAGE_GUARDED_BY(turn_);
  std::vector<Aside> aside_ FARPAGE_GUARDED_BY(turn_);
  std::vector<std::unique_ptr<EvictionBatch>> spare_ FARPAGE_GUARDED_BY(turn_);
  std::vector<Target*> targets_ FARPAGE_GUARDED_BY(turn_);
  size_t next_ FARPAGE_GUARDED_BY(turn_) = 0;  // where the search for the next target begins
  size_t next_in_order_ FARPAGE_GUARDED_BY(turn_) = 0;
  uint32_t choices_ FARPAGE_GUARDED_BY(turn_) = 0;               // between targets
  Instant needed_at_ FARPAGE_GUARDED_BY(turn_){0};               // at its usual priority
  Instant others_wanted_at_ FARPAGE_GUARDED_BY(turn_){0};        // when several targets wanted it
  Mutex added_mutex_;                                            // held for a few instructions
  std::vector<Target*> added_ FARPAGE_GUARDED_BY(added_mutex_);  // not in targets_ yet
  std::atomic<uint32_t> others_{0};                              // threads that want the turn
  std::jthread thread_;
};

}  // namespace farpage::pager
