// FaultWorker: one thread that reads fault events and resolves each of them.
//
// Waking an idle core is the most expensive part of the path, so there is one worker on each CPU,
// and all read the descriptors of all targets: a worker on the faulting core answers
// (docs/performance.md).
#pragma once

#include <array>
#include <thread>
#include <vector>

#include "base/loop_gap.h"
#include "base/running_threads.h"
#include "pager/evict/evictor.h"
#include "pager/fault/fetcher.h"
#include "pager/fault/prefetcher.h"
#include "pager/fault/thread_follower.h"
#include "pager/fault/wake_policy.h"
#include "pager/target.h"

namespace farpage::pager {

// Threads: one of its own.
// Invariants:
//  1. every fault that was read is answered: installed, zero-filled, unprotected, poisoned,
//     or left to a thread that owns the page and wakes the waiting threads;
//  2. the thread never blocks on the coordinator, on a lock held across I/O, or on an absent page.
class FaultWorker {
 public:
  static constexpr size_t kBufferBytes = Fetcher::kBufferBytes + Prefetcher::kBufferBytes;

  struct Ports {
    LinkPort& demand;
    LinkPort& prefetch;
  };
  // `index`: its place in the wake-up policy, which is stopped before the worker ends. cpu < 0: not
  // pinned.
  FaultWorker(EngineCore& engine, Ports ports, WakePolicy& wake_policy, uint32_t index, int cpu);
  // Without a thread: for resolve_here() alone.
  FaultWorker(EngineCore& engine, Ports ports, Evictor& evictor, uint32_t index);

  // Resolves a fault of the calling thread, from its signal handler (fault_worker_in_thread.cc).
  // One thread at a time.
  void resolve_here(Target& target, const uffd::Fault& fault);

 private:
  struct Parked {
    Target* target = nullptr;
    uffd::Fault fault;
    Instant since{0};
    bool for_room = false;  // it needs the evictor
  };
  // Time to spin, with a yield in each turn, before blocking: a wake-up costs more than this.
  static constexpr Nanoseconds kSpin = std::chrono::microseconds(50);
  // Time to spin after a fault for the next one. Adaptive: shorter than the wake-up of an idle
  // core, so that the worker on another core serves the threads there. Busy: for machines whose
  // idle cores poll, where a wake-up costs nothing.
  static constexpr Nanoseconds kAdaptiveLook = std::chrono::microseconds(10);
  static constexpr Nanoseconds kBusyLook = Milliseconds(1);
  static constexpr uint32_t kYieldsToProbe = 16;  // for a fault that came before the yield
  static constexpr Nanoseconds kRoomWait = Milliseconds(1);
  // Several targets: this worker is woken for room of each, and for events. What nobody wakes it
  // for: relatives that give up shared frames, other reasons to wait than room, and deadlines.
  static constexpr Nanoseconds kSharedRoomWait = Milliseconds(10);
  static constexpr Nanoseconds kSharedRetry = std::chrono::microseconds(100);
  static constexpr uint32_t kBlockedYields = 64;
  static constexpr Nanoseconds kBlockedPause = std::chrono::microseconds(50);
  static constexpr Nanoseconds kMaxBlockedPause = Milliseconds(1);
  static constexpr Seconds kSayAgain{10};
  static constexpr int64_t kClaimsAfter = 8;  // without room for this part of the deadline: 1/8
  static constexpr size_t kManyParked = 64;   // room for so many is there from the beginning
  static constexpr size_t kMaxServed = 64;
  static constexpr size_t kMaxEvents = 16;

  // A fault that fetches a page and belongs to no stream.
  struct Lone {
    Target* target = nullptr;
    uffd::Fault fault;
    PageWord word;  // of the page, while it was Remote
  };

  static Nanoseconds look_of(rdma::PollMode mode);
  void run();
  struct Moved {
    bool answered = false;
    bool prefetched = false;
  };
  // Reads, answers, posts and installs, without waiting.
  Moved take_turn();
  size_t read_and_handle();
  bool follows(uint32_t thread);
  ThreadFollower::Place look_at(uint32_t thread);
  void handle_faults(Target& target, std::span<const uffd::Event> events);
  void wait_while_blocked();
  bool is_of_evictor(const uffd::Fault& fault) const;
  bool is_ours(const Target& target, const uffd::Fault& fault) const;
  void record(Target& target, const uffd::Fault& fault) const;
  void note_served(Target& target);
  void nudge_evictor();
  void leave_closing();
  void wait_for_next(bool resolved);
  void park(Target& target, const uffd::Fault& fault, Instant since);
  void retry_parked();
  bool in_flight() const {
    return !parked_.empty() || fetcher_.outstanding() > 0 || prefetcher_.outstanding() > 0;
  }
  void wait_in_flight();
  void wait_for_messages();  // briefly
  void wait_for_room();

  // True: answered, or another thread will answer it. False: retry later (parked).
  bool handle(Target& target, const uffd::Fault& fault, Instant since);
  bool handle_missing(Target& target, const uffd::Fault& fault, PageWord word, Instant since);
  bool handle_write_protected(Target& target, const uffd::Fault& fault, PageWord word,
                              Instant since);
  bool fetch(Target& target, const uffd::Fault& fault, PageWord word, Instant since);
  bool fill_with_zeros(Target& target, const uffd::Fault& fault, PageWord word, Instant since);
  bool take_room(Target& target, const uffd::Fault& fault, Instant since);
  bool may_take_frame(Target& target, Instant since);
  bool handle_protected(Target& target, const uffd::Fault& fault, PageWord word, Instant since);
  void take_without_room(Target& target, Instant now);
  static bool unprotect(Target& target, PageIndex page, PageWord word);
  // --on-full=wait, and that is what is missing.
  bool waits_for_nodes(Target& target, Instant now);
  void fail_for_room(Target& target, PageIndex page, Instant since);
  uint32_t limit_of_prefetch(const Target& target) const;
  bool fill_fresh(Target& target, const uffd::Fault& fault, PageWord word, Instant since);
  void prefetch_after(Target& target, const uffd::Fault& fault, PageWord word);
  void fetch_clusters();
  void finish_in_flight();

  WorkerCounts& counts_of(const Target& target) const { return target.counts_of(index_); }

  EngineCore& engine_;
  WakePolicy* wake_policy_ = nullptr;  // none without a thread
  Evictor* evictor_ = nullptr;         // none with one
  const uint32_t index_;
  const uint32_t cpus_ = 1;  // of the machine
  const int home_cpu_ = -1;  // < 0: not pinned
  bool watched_ = false;     // since the last fault
  RunningThreads running_threads_;
  ThreadFollower follower_;
  std::vector<int> allowed_cpus_;  // in ascending order
  bool is_home_ = true;            // on home_cpu_, if it is pinned
  Fetcher fetcher_;
  Prefetcher prefetcher_;
  // As many as threads of programs fault: whoever changes its mappings waits until its event is
  // read, and eviction with it, so faults that cannot be answered must not keep events unread.
  std::vector<Parked> parked_;
  LoopGap parked_gap_;
  Target* short_of_room_ = nullptr;  // the last of those whose parked faults wait for the evictor
  // Targets with a fault in this turn. Beyond kMaxServed one is nudged in a later turn.
  std::array<Target*, kMaxServed> served_{};
  size_t served_count_ = 0;
  std::array<Lone, kMaxEvents> lone_{};
  size_t lone_count_ = 0;  // none between two turns: their targets may be removed then
  bool blocked_ = false;   // in this turn: a target's messages could not be read (Target::order)
  uint32_t blocked_turns_ = 0;  // in a row
  Instant said_without_room_{INT64_MIN / 2};
  Instant lacked_slab_at_{INT64_MIN / 2};
  uint64_t removals_seen_ = 0;
  Instant idle_since_{0};
  Nanoseconds look_for_next_{0};
  Instant resolved_at_{0};
  // The thread that was woken last had faulted again before the waking call returned.
  bool runs_in_wake_ = false;
  bool reads_first_ = false;  // before it yields, this time
  uint32_t since_probe_ = 0;  // faults after which it yielded
  std::jthread thread_;
};

}  // namespace farpage::pager
