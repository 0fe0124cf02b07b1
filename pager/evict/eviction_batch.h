// EvictionBatch: a set of resident pages during their eviction: picked, protected, copied out,
// written to every replica, dropped. It proceeds in turns that never block, so that a thread that
// waits for something else can evict meanwhile.
//
// Order: order_choice.h. Victims lie together, so that one flush protects a whole span, and one
// vector drops it (scattered single pages would cost an inter-processor interrupt each).
#pragma once

#include <array>

#include "base/loop_gap.h"
#include "base/mutex.h"
#include "base/page_codec.h"
#include "pager/links/link_port.h"
#include "pager/links/peer_state.h"
#include "pager/links/posting.h"
#include "pager/target.h"

namespace farpage::pager {

// All pages of one batch belong to one target.
//
// Threads: one at a time (Evictor).
// Invariants:
//  1. a page is dropped only after every replica that is not lost has acknowledged what it holds;
//  2. a page that is written during its eviction stays;
//  3. after any failure the page stays resident and Dirty, unless its memory is gone.
class EvictionBatch {
 public:
  static constexpr uint32_t kMaxPages = WriteLimit::kLimit;
  static constexpr size_t kBufferBytes = size_t{kMaxPages} * kPageBytes;

  EvictionBatch(EngineCore& engine, LinkPort& port);

  // Some are on their way.
  bool active() const { return count_ > 0; }
  // The size of a batch. A span is a run of consecutive pages: each span costs a page table walk
  // and cache misses, and each further page of it costs little more than its copy. When many pages
  // are dropped in one call, a thread that faults meanwhile waits for the CPU or for the flush;
  // when few are, each flush serves few pages. A batch ends with the first page of the last span; a
  // run that the target has declared cold is one batch, whatever its spans.
  struct Size {
    uint32_t pages;
    uint32_t spans;
    // Copied out and posted in one step. After each step it yields its CPU to a fault worker,
    // unless a thread waits for room. 0: it never yields.
    uint32_t step_spans;
    constexpr bool is_reached(size_t with_pages, uint32_t with_spans) const {
      return with_pages >= pages || with_spans >= spans;
    }
  };
  static constexpr Size kSmall{kMaxPages, 32, 8};
  static constexpr Size kLarge{kMaxPages, kMaxPages, 0};
  static constexpr uint32_t kFewestPages = 8;  // of a batch, if there are so many victims
  // Where messages are not read during a drop (Target::order) pages leave in parts: but the rest of
  // a batch at once if a part had to wait this long for a moment without an unread event. A program
  // that changes its mappings all the time leaves few such moments.
  static constexpr Size kPart{16, 8, 0};
  static constexpr Nanoseconds kBusyMappings = std::chrono::microseconds(400);
  // Takes that many victims of the target, and posts what must be written. False: there is nothing
  // to take. Only while no batch is active.
  // `drop_patience`: as finish().
  bool begin(Target& target, Size most, Nanoseconds drop_patience);
  bool is_of(const Target& target) const { return active() && target_ == &target; }
  Target& target() const { return *target_; }
  // One turn. Drops the acknowledged pages when all are acknowledged, or when that takes too long.
  enum class Turn : uint8_t { kEnded, kMoved, kWaiting };
  Turn advance();
  // All turns to the end; waits for the replicas. False: the target has not dropped its pages
  // within the drop patience; everything else has been done, and await_drop() ends the batch. The
  // port is free for another batch.
  bool finish();
  bool is_dropping() const { return dropping_; }
  bool await_drop(Nanoseconds patience);
  // Pages that the last batch has freed.
  uint64_t freed() const { return freed_; }
  // The batch has freed nothing, although the program has not written or discarded all of its
  // pages.
  bool stuck() const { return freed_ == 0 && taken_back_ < taken_; }

  // Whether one of the pages between these two was written again after it had been protected, or
  // has come back soon: then a call that protects does not reach across it.
  static bool is_any_in_use(const PageTable& table, PageIndex before, PageIndex behind);

 private:
  // One victim of the batch.
  struct Victim {
    PageIndex page;
    PageWord word;  // as the evictor left it: Evicting, then Dropping
    const SlabLease* lease = nullptr;
    uint8_t unacked = 0;      // replicas (bits) that have not acknowledged
    int16_t buffer = -1;      // place in the buffer; -1: not copied out
    uint64_t checksum = 0;    // of its bytes; 0: it was not made
    bool unchanged = false;   // Dirty, but its slot has these bytes already: nothing is sent
    bool zero = false;        // all zeros: nothing is sent, the page is Empty afterwards
    bool keep = false;        // stays resident
    bool late = false;        // for want of an acknowledgement
    bool tries_copy = false;  // a compressed copy is to be made
    bool copied = false;      // it is in the pool
  };
  // One WRITE: consecutive victims with consecutive pages and buffer places.
  struct WriteRun {
    size_t first = 0;
    uint32_t count = 0;
    uint32_t replica = 0;
    bool in_flight = false;
    bool done = false;
  };
  // In one call of a channel. With its header each is two segments over TCP, which sends 128 of
  // them in one system call.
  static constexpr size_t kMaxPosting = 64;
  static_assert(kMaxPages <= uffd::kMaxDropRuns);
  static constexpr size_t kPagesOfStep = 64;
  static constexpr size_t kMaxRuns = size_t{kMaxPages} * SlabLease::kMaxPlaces;

  // The phases of one batch.
  void pick();  // 0
  void pick_cold();
  void pick_in_order();
  void pick_from_block(EvictionHand& hand);
  // `group`: the target's. Its mutex may be released and acquired again.
  enum class Taken : uint8_t { kYes, kNo, kWithoutSlab };
  Taken try_take(PageIndex page, PageWord word, ForkGroup& group) FARPAGE_REQUIRES(group.mutex());
  size_t step_end(size_t first) const;
  void give_way() const;
  bool is_full() const { return most_.is_reached(count_, spans_); }
  void protect();  // 1
  void protect_run(PageIndex first, uint32_t pages);
  // Of the victims from `first` to `end`:
  void copy_out(size_t first, size_t end);  // 2
  void note_zero_pages(size_t first, size_t end);
  void note_unchanged_pages(size_t first, size_t end);
  void build_runs(size_t first, size_t end);  // 3
  size_t post_runs();
  rdma::Operation write_of(size_t index, const Route& route) const;
  size_t post_gathered();
  // Compressed copies (eviction_batch_copies.cc), while the WRITEs are on their way.
  void trim_copies();
  bool drop_copies();
  void review_copies();
  void keep_copies(size_t first, size_t end);
  std::span<const std::byte> read_clean(size_t first, size_t end);
  void keep_copy(Victim& victim, std::span<const std::byte> bytes);
  void forget_copies();
  // `freed`: pages that have left. Those that the pool has grown by are counted in their place.
  void give_back(uint64_t freed);
  size_t take_completions();  // 4
  void restart_patience(Instant now);
  void expire_replicas(Instant now);
  // `other`: has what this replica has missed; it is lost only while that one is live.
  void fail_run(WriteRun& run, const char* why, const ReplicaLease* other = nullptr);
  void shorten(WriteRun& run, uint32_t pages);
  void acknowledge(WriteRun& run);
  std::span<const WriteRun> runs() const;
  bool all_done() const;
  bool any_in_flight() const;
  bool any_safe() const;
  bool too_late(bool moved) const;
  void drop();  // 5
  bool drop_parts();
  void take_part();
  void keep_rest();
  bool is_safe(const Victim& victim) const;
  bool ends_part(const Status& dropped);
  void settle_dropped(bool dropped);
  void wake_dropped();
  void repeat_hints();
  void end();
  std::span<const uffd::PageRun> drop_spans() const {
    return std::span(drop_spans_).first(drop_span_count_);
  }
  std::span<uffd::DropResult> drop_results() {
    return std::span(drop_results_).first(drop_span_count_);
  }
  static bool is_sent(const Victim& victim) {
    return !victim.keep && !victim.unchanged && victim.buffer >= 0;
  }
  void keep_or_forget(Victim& victim);
  void keep_resident(Victim& victim, PageState state);

  const ReplicaLease& replica_of(const WriteRun& run) const;
  PeerState::Wait& wait_of(const ReplicaLease& replica) { return engine_.peers[replica.node].wait; }
  WriteLimit& limit_of(const ReplicaLease& replica) {
    return engine_.peers[replica.node].write_limit;
  }
  std::span<std::byte> bytes_of(const Victim& victim) const {
    return port_.buffer().subspan(static_cast<size_t>(victim.buffer) * kPageBytes, kPageBytes);
  }

  EngineCore& engine_;
  LinkPort& port_;
  Target* target_ = nullptr;  // of the last batch

  std::array<Victim, kMaxPages> victims_;
  size_t count_ = 0;
  uint32_t spans_ = 0;                         // of them
  Size most_{};                                // this time
  static constexpr uint32_t kMaxMadeOwn = 64;  // by one batch
  uint32_t made_own_ = 0;                      // shared pages that were met
  bool misses_slab_ = false;                   // a page could not be taken for want of a slab
  EvictionOrder order_ = EvictionOrder::kByHint;
  std::array<WriteRun, kMaxRuns> runs_;
  size_t run_count_ = 0;
  Posting<kMaxPosting> posting_{port_};  // in the order of the runs
  PageCodec codec_;
  size_t copied_ = 0;  // pages, into the buffer
  Instant picked_at_{0};
  Instant posted_at_{0};
  LoopGap gap_;
  bool closing_ = false;  // nothing more is posted: the batch ends with what it has
  // Phase 5, which may go on after finish(). The victims before part_end_ have been dropped, or are
  // being dropped.
  size_t part_end_ = 0;
  bool takes_rest_ = false;  // the next part has all of them
  std::array<uffd::PageRun, kMaxPages> drop_spans_;
  std::array<uffd::DropResult, kMaxPages> drop_results_;
  size_t drop_span_count_ = 0;
  Nanoseconds drop_patience_{0};
  bool dropping_ = false;
  uint64_t freed_ = 0;
  uint64_t taken_ = 0;       // by the last batch
  uint64_t taken_back_ = 0;  // of these, by the program
  uint64_t forgotten_ = 0;   // of the pages under way
};

}  // namespace farpage::pager
