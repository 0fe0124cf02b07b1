// Target: one address space that an engine serves: its page table, its budget, its hints and its
// process image. It has no thread and no channel of its own.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "base/log.h"
#include "base/page_codec.h"
#include "pager/compress/compressed_pages.h"
#include "pager/engine_core.h"
#include "pager/evict/cold_hints.h"
#include "pager/evict/eviction_state.h"
#include "pager/fault/cluster_choice.h"
#include "pager/fault/trend.h"
#include "pager/fork/backing_regions.h"
#include "pager/pages/access_map.h"
#include "pager/pages/budget.h"
#include "pager/pages/page_table.h"
#include "pager/pages/pin_map.h"
#include "pager/pages/write_guess.h"
#include "pager/touch_recorder.h"
#include "uffd/address_space.h"

namespace farpage::pager {

// What one fault worker has of one target.
struct alignas(64) WorkerShare {
  WorkerCounts counts;
  // Fetches, prefetches and parked faults of the target in the worker's hands. One writer.
  std::atomic<uint32_t> held{0};
};

// Threads: see each member. The references outlive it.
struct Target {
  const PagerOptions& options;
  EngineCore& engine;
  uffd::AddressSpace& space;
  ProcessImage& image;
  PageTable& table;  // the process image's
  Budget& budget;
  BackingRegions& backing_regions;
  PinMap& pins;
  AccessMap& access;
  CompressedPages& copies;
  WorkerShare* shares;  // one for each worker
  TargetTimes& times;
  TrendDetector& trends;
  ClusterChoice& clusters;

  EventOrder* order = space.event_order();  // mostly null
  WriteGuess write_guess{};
  std::shared_ptr<TouchRecorder> recorder{};  // mostly null
  ColdHints cold{};                           // what the evictor takes first, whatever its age
  EvictionState eviction{table, options.compressed.adaptive};

  // A worker has read that the target has forked: never waits. Set before the target is served.
  std::function<void(std::unique_ptr<uffd::AddressSpace>)> on_forked{};

  // Messages were taken by who dropped pages, in a section that reads: applies them, and ends it.
  std::function<void()> on_messages{};

  // A forked child without a budget: it has no more room than it was given, and no page of it is
  // evicted.
  std::atomic<bool> on_trial{false};
  std::atomic<bool> wants_budget{false};
  std::atomic<uint64_t> most_own{0};  // pages with a frame of their own
  std::atomic<uint64_t> copied{0};    // pages of its parent that it has written meanwhile
  std::atomic<int64_t> short_of_room_at{INT64_MIN / 2};  // the last time
  std::function<void()> on_wants_budget{};               // never waits

  // Pages that eviction has dropped, modulo 2^32: the clock of the ages of copies.
  std::atomic<uint32_t> departures{0};

  std::atomic<bool> closing{false};  // it is being removed from the engine
  std::atomic<bool> gone{false};     // its process has ended, or called exec
  std::atomic<uint64_t> replicas_lost{0};
  // Counts epochs, in parts of 2^-32: ages go on evenly when the budget changes.
  std::atomic<uint64_t> age_clock{0};

  WorkerCounts& counts_of(uint32_t worker) const { return shares[worker].counts; }
  // The worker holds one reference more, or one less: remove() waits for those of all workers.
  void hold(uint32_t worker) const {
    std::atomic<uint32_t>& held = shares[worker].held;
    held.store(held.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void let_go(uint32_t worker) const {
    std::atomic<uint32_t>& held = shares[worker].held;
    held.store(held.load(std::memory_order_relaxed) - 1, std::memory_order_release);
  }
  bool is_held() const {
    for (uint32_t i = 0; i < options.workers; ++i)
      if (shares[i].held.load(std::memory_order_acquire) != 0) return true;
    return false;
  }

  // Pages installed one after the other carry the same or the next epoch.
  uint8_t next_epoch() {
    return epoch_of(age_clock.fetch_add(age_step(budget.limit()), std::memory_order_relaxed));
  }
  uint8_t current_epoch() const { return epoch_of(age_clock.load(std::memory_order_relaxed)); }
  // Must pages that are fetched for a read, or ahead, be write-protected? Pages shared by a fork
  // stay shared until they are written. A recorder sees the first write to each page.
  bool protects_next_read(uint32_t pages = 1) {
    return recorder != nullptr || image.fork_group()->has_forked() ||
           write_guess.protect_next(pages);
  }
  // A page that was away has come back. `word`: with the epoch and the order of its eviction.
  // Returns the epoch of its installation.
  uint8_t note_return(PageWord word) {
    const uint8_t now = next_epoch();
    eviction.choice.returned(order_of(word), static_cast<uint8_t>(now - word.epoch()));
    return now;
  }
  // The first write to a page that was protected.
  void note_first_write() {
    if (!image.fork_group()->has_forked()) write_guess.written();
  }
  // Write-protects pages. Waits while an event is unread, so not for a fault worker. False: the run
  // crosses mappings, or a part of it is gone.
  bool protect(uffd::PageRun run) const {
    uffd::Outcome outcome = space.protect(run);
    while (outcome == uffd::Outcome::kRetry && !closing.load(std::memory_order_acquire)) {
      std::this_thread::yield();
      outcome = space.protect(run);
    }
    return outcome == uffd::Outcome::kDone;
  }
  // In a section that changes pages: was a page that this thread fetches given up meanwhile?
  bool was_discarded(PageIndex page) const {
    return order != nullptr && table.load(page).has(PageWord::kDiscarded);
  }
  // Completes a fetch that this thread started by moving the page to Fetching.
  void end_fetching(PageIndex page, PageWord from, PageWord to) const {
    if (table.end_fetching(page, from, to)) space.wake({page, 1});
  }
  // In a section that changes pages: a page that is Remote, but may be here, is. False: it has
  // changed, or is protected still.
  bool claim_present(PageIndex page, PageWord word) {
    const PageWord held = word.to(PageState::kFetching);
    if (!table.transition(page, word, held)) return false;
    budget.take_anyway();
    const uffd::Outcome outcome = space.unprotect({page, 1});
    end_fetching(page, held, held.to(PageState::kDirty));
    return outcome != uffd::Outcome::kRetry;
  }
  // Restores the priority of eviction: of the evictor's thread, and of the target's agent.
  void come_forward() {
    engine.eviction_priority.come_forward();
    eviction.agent_priority.come_forward();
  }
  // As in Budget; also restores the priority of eviction when half of the room is used up.
  void nudge_evictor() {
    if (eviction.pauses.load(std::memory_order_relaxed) > 0) return;  // resume() does
    if (budget.nearly_full()) come_forward();
    budget.nudge();
  }
  // A fault found no room. Called again while it waits.
  void note_short_of_room(Instant now) {
    short_of_room_at.store(now.count(), std::memory_order_relaxed);
    want_budget();
  }
  // A worker waits for the room of one target at a time; the faults of others are parked.
  bool has_waiters(Instant now) const {
    constexpr Nanoseconds kRecent = Milliseconds(20);
    return budget.has_waiters() ||
           now - Instant(short_of_room_at.load(std::memory_order_relaxed)) < kRecent;
  }
  void want_budget() {
    if (on_trial.load(std::memory_order_acquire) && !wants_budget.exchange(true)) on_wants_budget();
  }
  // A write to a page that was shared with the parent until now: the kernel copies it.
  void note_copied() {
    if (on_trial.load(std::memory_order_relaxed)) ++copied;
  }
  // Does the target have fewer frames of its own than it may have? The budget counts the pages that
  // it shares with relatives as well, though their frames exist once.
  bool has_frames() const {
    if (on_trial.load(std::memory_order_acquire))
      return budget.used() + copied.load(std::memory_order_relaxed) < budget.limit();
    const uint64_t shared = table.shared_pages();
    return shared == 0 || budget.used() < shared + most_own.load(std::memory_order_relaxed) ||
           !image.fork_group()->has_forked() || budget.is_lifted();
  }
  // What the pool of compressed copies may have of the budget. Eviction must be able to reach the
  // low-water mark without it, whatever is pinned.
  uint64_t most_pool_pages() const {
    const uint64_t low = budget.low();
    const uint64_t pinned = pins.pinned_pages();
    return low > pinned ? (low - pinned) * options.compressed.percent / 100 : 0;
  }
  // Would a page be here still, whose copy was kept at `moment`, if there were no copies?
  bool is_early(uint32_t moment) const {
    return departures.load(std::memory_order_relaxed) - moment < copies.pool_pages();
  }
  void wait_for_room(Nanoseconds timeout, Instant since = Instant{0}) {
    come_forward();
    budget.wait_for_room(timeout, !has_frames(), since);
  }
  // As Budget::begin_room_wait(). False: there is room, and a fault may have a frame.
  bool begin_room_wait(uint32_t worker, Instant since) {
    come_forward();
    return budget.begin_room_wait(worker, since) || !has_frames();
  }
  void note_touched(PageIndex page) const { backing_regions.want(page); }
  // The leases of the backing region that stores a page with this word.
  const LeaseMap& leases_of(PageWord word) const {
    return image.fork_group()->leases_of(word.backing_region());
  }
  // Of the backing region that `word` names; to be changed only by the one that evicts.
  SlotChecksums& checksums_of(PageWord word) const {
    return image.fork_group()->leases_of(word.backing_region()).checksums();
  }
  // Are these the bytes that were written to the page's slot? `word`: of a page that this thread
  // fetches, so that no WRITE to the slot is under way, and none begins.
  bool is_right(PageIndex page, PageWord word, std::span<const std::byte> bytes) const {
    const LeaseMap& leases = leases_of(word);
    return (!options.checksums && !leases.is_stored()) || leases.is_right(page, bytes);
  }
  // Moves the bytes of the page's compressed copy into `out`. False: there is none any more, or it
  // was damaged. `word`: as for is_right().
  bool take_copy(PageIndex page, PageWord word, std::span<std::byte> out,
                 WorkerCounts& counts) const {
    std::array<std::byte, CompressedPages::kMaxBytes> block;
    const auto copy = copies.take(page, block);
    if (!copy) return false;
    if (!decompress_page(std::span(block).first(copy->bytes), out) || !is_right(page, word, out)) {
      log::warn("pager: copy_wrong page={}: it is read from a node", page.value);
      return false;
    }
    if (is_early(copy->moment)) counts.early_copies.add();
    return true;
  }
  // A READ has brought others from there.
  void found_wrong(PageIndex page, PageWord word, const ReplicaLease& replica) const {
    if (engine.on_wrong_page) engine.on_wrong_page({&leases_of(word), page, &replica});
  }
  // As mark_lost(), for a replica of the backing region that `word` names.
  void lose_replica(PageIndex page, PageWord word, const ReplicaLease& replica, const char* why,
                    const ReplicaLease* other = nullptr) {
    if (mark_lost(leases_of(word), *engine.nodes, page, replica, why, other))
      replicas_lost.fetch_add(1, std::memory_order_relaxed);
  }
};

}  // namespace farpage::pager
