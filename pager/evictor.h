// Evictor: the thread that keeps the resident pages under the budget.
//
// Order: eviction_hand.h. Victims lie together, so that one flush protects a whole span, and one
// vector drops it (scattered single pages would cost an inter-processor interrupt each).
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "base/doorbell.h"
#include "pager/core.h"
#include "pager/eviction_hand.h"
#include "pager/link_port.h"
#include "pager/write_window.h"

namespace farpage::pager {

// Threads: one of its own; pause(), resume() and stats() from any.
// Invariants:
//  1. a page is dropped only after every replica that is not lost has acknowledged what it holds;
//  2. a page that is written while it is being evicted stays;
//  3. at any failure the page stays resident and Dirty.
class Evictor {
 public:
  static constexpr size_t kBatchPages = 256;
  static constexpr size_t kBufferBytes = kBatchPages * kPageBytes;

  // `paused`: until the first resume().
  Evictor(Core& core, LinkPort& port, bool paused);
  ~Evictor();

  const EvictorStats& stats() const { return stats_; }

  // Returns when nothing is being evicted; nothing will be until as many resume() as pause().
  void pause();
  void resume();

 private:
  // One victim of the batch.
  struct Victim {
    PageIndex page;
    PageWord word;        // as the evictor left it: Evicting, then Dropping
    uint8_t unacked = 0;  // replicas (bits) that have not acknowledged
    int16_t buffer = -1;  // place in the buffer; -1: not copied out
    bool zero = false;    // all zeros: nothing is sent, the page is Empty afterwards
    bool keep = false;    // stays resident
  };
  // One WRITE: consecutive victims with consecutive pages and buffer places.
  struct WriteRun {
    size_t first = 0;
    uint32_t count = 0;
    uint32_t replica = 0;
    bool in_flight = false;
    bool done = false;
  };
  static constexpr size_t kMaxRuns = kBatchPages * coordinator::kMaxReplicas;

  void run();
  bool wait_while_paused();
  // The phases of one batch.
  size_t pick();  // 0
  void pick_cold();
  void pick_from_block();
  // With the family's mutex held, which may be let go and taken again.
  bool try_take(PageIndex page, PageWord word, std::unique_lock<std::mutex>& family_lock);
  void protect();  // 1
  void protect_run(PageIndex first, uint32_t pages);
  void copy_out();  // 2
  void note_zero_pages();
  void build_runs();  // 3
  void write_out();   // 3, 4
  size_t post_runs();
  size_t take_completions();
  void expire_replicas(Instant start);
  void fail_run(WriteRun& run, const char* why);
  void shorten(WriteRun& run, uint32_t pages);
  void acknowledge(WriteRun& run);
  std::span<const WriteRun> runs() const;
  bool all_done() const;
  bool any_safe() const;
  void drop();  // 5
  bool is_safe(const Victim& victim) const;
  void finish_drop(std::span<const uffd::PageRun> spans, std::span<uffd::DropResult> results);
  void wake_dropped(std::span<const uffd::PageRun> spans);
  void keep_resident(Victim& victim, PageState state);
  void finish_batch();

  const SlabLease* lease_of(const Victim& victim) const {
    return core_.leases_of(victim.word).find(victim.page);
  }
  const ReplicaLease& replica_of(const WriteRun& run) const;
  WriteWindow& window_of(const ReplicaLease& replica) { return windows_[replica.node.value]; }
  std::span<std::byte> bytes_of(const Victim& victim) const {
    return port_.buffer().subspan(static_cast<size_t>(victim.buffer) * kPageBytes, kPageBytes);
  }

  Core& core_;
  LinkPort& port_;
  EvictorStats stats_;

  std::array<Victim, kBatchPages> victims_;
  size_t count_ = 0;
  std::array<WriteRun, kMaxRuns> runs_;
  size_t run_count_ = 0;
  std::vector<WriteWindow> windows_;                  // of each node
  std::array<Instant, kMaxNodes> acknowledged_at_{};  // by each node, last
  EvictionHand hand_;
  size_t stuck_batches_ = 0;  // in a row that freed nothing

  std::mutex mutex_;
  std::condition_variable changed_;
  int pauses_;           // guarded by mutex_
  bool paused_ = false;  // guarded by mutex_
  std::atomic<bool> pause_hint_;
  std::jthread thread_;
};

}  // namespace farpage::pager
