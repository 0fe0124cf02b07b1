// Core: what the threads of one pager share.
#pragma once

#include <atomic>
#include <functional>

#include "pager/evict/cold_hints.h"
#include "pager/evict/eviction_hand.h"
#include "pager/evict/eviction_priority.h"
#include "pager/fork/backing_regions.h"
#include "pager/fork/event_readers.h"
#include "pager/links/node_table.h"
#include "pager/links/peer_state.h"
#include "pager/options.h"
#include "pager/pages/access_map.h"
#include "pager/pages/budget.h"
#include "pager/pages/page_table.h"
#include "pager/pages/pin_map.h"
#include "pager/pages/write_guess.h"
#include "pager/stats.h"
#include "uffd/address_space.h"

namespace farpage::pager {

// Threads: see each process image. All outlive the threads.
struct Core {
  const PagerOptions& options;
  uffd::AddressSpace& space;
  ProcessImage& image;
  PageTable& table;  // the process image's
  Budget& budget;
  BackingRegions& backing_regions;
  NodeDirectory& nodes;
  SharedStats& shared_stats;
  PinMap& pins;
  AccessMap& access;
  NodeTable<PeerState>& peers;

  WriteGuess write_guess;
  ColdHints cold;  // what the evictor takes first, whatever its age
  EvictionPriority eviction_priority;

  // A worker has read that the target has forked: never waits. Set before the threads start.
  std::function<void(std::unique_ptr<uffd::AddressSpace>)> on_forked;
  EventReaders event_readers;

  // Two steps: the evictor may be waiting for the end of a fault of its own (see evictor_thread).
  std::atomic<bool> stopping{false};          // of all but the fault workers
  std::atomic<bool> workers_stopping{false};  // the evictor has ended
  std::atomic<bool> target_gone{false};
  // Counts epochs, in parts of 2^-32: ages go on evenly when the budget changes.
  std::atomic<uint64_t> age_clock{0};
  // Thread id of the evictor, as faults carry it. It reads the target's pages, and one that the
  // target has dropped meanwhile makes it fault like any other thread.
  std::atomic<uint32_t> evictor_thread{0};

  // Pages installed one after the other carry the same or the next epoch.
  uint8_t next_epoch() {
    return epoch_of(age_clock.fetch_add(age_step(budget.limit()), std::memory_order_relaxed));
  }
  uint8_t current_epoch() const { return epoch_of(age_clock.load(std::memory_order_relaxed)); }
  // Must a page that is fetched for a read be write-protected? Pages shared by a fork stay shared
  // until they are written.
  bool protects_next_read() {
    return image.fork_group()->has_forked() || write_guess.protect_next();
  }
  // The first write to a page that was protected.
  void note_first_write() {
    if (!image.fork_group()->has_forked()) write_guess.written();
  }
  // Completes a fetch that this thread started by moving the page to Fetching.
  void end_fetching(PageIndex page, PageWord from, PageWord to) {
    if (table.end_fetching(page, from, to)) space.wake({page, 1});
  }
  // As in Budget; also restores the priority of eviction when half of the room is used up.
  void nudge_evictor() {
    if (budget.nearly_full()) eviction_priority.come_forward();
    budget.nudge();
  }
  void wait_for_room(Nanoseconds timeout) {
    eviction_priority.come_forward();
    budget.wait_for_room(timeout);
  }
  void note_touched(PageIndex page) { backing_regions.want(page); }
  // The leases of the backing region that stores a page with this word.
  const LeaseMap& leases_of(PageWord word) const {
    return image.fork_group()->leases_of(word.backing_region());
  }
  Nanoseconds unreachable_for(NodeIndex node) const {
    const int64_t since = peers[node].unreachable_since_ns.load(std::memory_order_relaxed);
    return since == 0 ? Nanoseconds(0) : SteadyClock::read() - Nanoseconds(since);
  }
  // As mark_lost(), for a replica of the backing region that `word` names.
  void lose_replica(PageIndex page, PageWord word, const ReplicaLease& replica, const char* why);
};

}  // namespace farpage::pager
