// FaultWorker: one thread that reads fault events and resolves each of them.
//
// Waking an idle core is the most expensive part of the path, so there is one worker on each CPU,
// and all read the same descriptor: a worker on the faulting core answers (docs/performance.md).
#pragma once

#include <array>
#include <thread>

#include "base/loop_gap.h"
#include "pager/core.h"
#include "pager/evict/evictor.h"
#include "pager/fault/fetcher.h"
#include "pager/fault/prefetcher.h"
#include "pager/fault/trend.h"
#include "pager/fault/wake_policy.h"

namespace farpage::pager {

// Threads: one of its own, which owns all but the counters.
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
  FaultWorker(Core& core, Ports ports, TrendDetector& trends, WakePolicy& wake_policy,
              uint32_t index, int cpu);
  // Without a thread: for resolve_here() alone.
  FaultWorker(Core& core, Ports ports, TrendDetector& trends, Evictor& evictor);

  // Resolves a fault of the calling thread, from its signal handler (fault_worker_in_thread.cc).
  // One thread at a time.
  void resolve_here(const uffd::Fault& fault);

  const WorkerStats& stats() const { return stats_; }

 private:
  struct Parked {
    uffd::Fault fault;
    Instant since{0};
  };
  // Time to spin, with a yield in each turn, before blocking: a wake-up costs more than this.
  static constexpr Nanoseconds kSpin = std::chrono::microseconds(50);
  // Time to spin after a fault for the next one. Adaptive: shorter than the wake-up of an idle
  // core, so that the worker on another core serves the threads there. Busy: for machines whose
  // idle cores poll, where a wake-up costs nothing.
  static constexpr Nanoseconds kAdaptiveLook = std::chrono::microseconds(10);
  static constexpr Nanoseconds kBusyLook = Milliseconds(1);
  static constexpr uint32_t kYieldsToProbe = 16;     // for a fault that came before the yield
  static constexpr uint64_t kWindowsInBudget = 128;  // of those that are fetched ahead
  static constexpr Nanoseconds kRoomWait = Milliseconds(1);
  static constexpr size_t kMaxParked = 64;
  static constexpr size_t kMaxEvents = 16;

  static Nanoseconds look_of(rdma::PollMode mode);
  void run(int cpu);
  size_t read_and_handle();
  void handle_events(std::span<uffd::Event> events);
  void wait_for_next(bool resolved);
  void retry_parked();
  bool in_flight() const {
    return parked_count_ > 0 || fetcher_.outstanding() > 0 || prefetcher_.outstanding() > 0;
  }
  void wait_in_flight();

  // True: answered, or another thread will answer it. False: retry later (parked).
  bool handle(const uffd::Fault& fault, Instant since);
  bool handle_missing(const uffd::Fault& fault, PageWord word, Instant since);
  bool handle_write_protected(const uffd::Fault& fault, PageWord word);
  bool fetch(const uffd::Fault& fault, PageWord word, Instant since);
  bool fill_with_zeros(const uffd::Fault& fault, PageWord word, Instant since);
  bool take_room(const uffd::Fault& fault, Instant since);
  bool unprotect(PageIndex page, PageWord word);
  bool claim_present(PageIndex page, PageWord word);
  void handle_unmapped(const uffd::Unmapped& event);
  void fail_for_room(PageIndex page, Instant since);
  uint32_t window_limit() const;
  bool fill_fresh(const uffd::Fault& fault, PageWord word, Instant since);
  void prefetch_after(const uffd::Fault& fault);
  void finish_in_flight();

  Core& core_;
  TrendDetector& trends_;
  WakePolicy* wake_policy_ = nullptr;  // none without a thread
  Evictor* evictor_ = nullptr;         // none with one
  uint32_t index_ = 0;
  bool watched_ = false;  // since the last fault
  WorkerStats stats_;
  Fetcher fetcher_;
  Prefetcher prefetcher_;
  std::array<Parked, kMaxParked> parked_;
  size_t parked_count_ = 0;
  LoopGap parked_gap_;
  bool short_of_room_ = false;  // some parked fault waits for the evictor
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
