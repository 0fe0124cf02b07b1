// The counters of targets. Each fault worker and the evictor write their own; readers add them up.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "base/histogram.h"
#include "coordinator/api.h"
#include "pager/links/lease_map.h"
#include "rdma/transport.h"

namespace farpage::pager {

// One writer, any reader.
class Counter {
 public:
  void add(uint64_t by = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Of one target, by one fault worker.
struct alignas(64) WorkerCounts {
  Counter faults_remote;       // answered by a READ
  Counter faults_compressed;   // answered from a compressed copy
  Counter faults_zero;         // never written before: a zero page
  Counter faults_write;        // first write to a clean page
  Counter faults_spurious;     // write to a Dirty page, protected along with one that leaves
  Counter faults_coalesced;    // another thread was already fetching the page
  Counter faults_rescued;      // a write that cancelled an eviction
  Counter faults_failed;       // ended in SIGBUS
  Counter faults_waited_room;  // had to wait for the evictor
  Counter reads;               // demand READs that completed
  Counter read_bytes;
  Counter prefetch_pages;             // installed ahead
  Counter clusters;                   // of which neighbours were fetched
  Counter cluster_pages;              // of the prefetched ones, those neighbours
  Counter prefetch_compressed_pages;  // of these, from compressed copies
  // Copies that were used so early that without a pool the page would have been here
  // (compression_policy.h).
  Counter early_copies;
  Counter prefetch_failed_pages;
  Counter zeros_ahead;  // zero pages placed before their first touch
  Counter retries;      // READs that were tried again, here or at another replica
  Counter pages_wrong;  // that a READ brought, with other bytes than were written there
  std::array<Counter, 6> completions_by_status;  // by rdma::CompletionStatus
};

// The times of one target. Any thread records.
struct TargetTimes {
  Histogram fault_ns;        // remote fault: event read -> installed and woken
  Histogram queue_ns;        //   event read -> posted
  Histogram wire_ns;         //   posted -> completion seen
  Histogram install_ns;      //   the call that installs and wakes
  Histogram compressed_ns;   // fault answered from a copy: event read -> installed and woken
  Histogram zero_ns;         // zero fault: event read -> installed
  Histogram evict_batch_ns;  // picked -> dropped
};

// Of one target.
struct alignas(64) EvictorCounts {
  Counter pages_written;    // sent to the replicas
  Counter pages_unchanged;  // Dirty, but with the bytes that their slots have: not sent
  Counter pages_clean;      // dropped without being sent
  Counter pages_zero;       // all zeros: recorded, not sent
  Counter pages_cancelled;  // written while being evicted
  Counter copies_stored;    // compressed copies of pages that were dropped
  Counter batches;
  Counter writes;  // WRITE operations, all replicas
  Counter write_bytes;
  Counter write_failures;  // WRITEs with another status than ok

  uint64_t pages_dropped() const {
    return pages_written.get() + pages_unchanged.get() + pages_clean.get() + pages_zero.get();
  }
};

// Of one engine: written rarely, by several threads.
struct LinkCounts {
  std::atomic<uint64_t> transport_fallbacks{0};
  std::atomic<uint64_t> channels_connected{0};
  std::atomic<uint64_t> channels_broken{0};
  std::array<std::atomic<uint64_t>, kTransportKinds> connected_by_kind{};
};

// What a pager keeps of the times of its faults after it has ended.
struct PagerLatencies {
  LatencySummary fault, queue, wire, install, compressed, zero, evict_batch;
};

// Sums at one moment.
struct PagerCounts {
  uint64_t faults_remote = 0, faults_zero = 0, faults_write = 0, faults_coalesced = 0;
  uint64_t faults_rescued = 0, faults_spurious = 0, faults_failed = 0, faults_waited_room = 0;
  uint64_t reads = 0, read_bytes = 0, retries = 0;
  // Pages with other bytes than were written there: found by READs of the program's pages, and by
  // the scrubber; pages that it has checked; pages that were written again.
  uint64_t wrong_read = 0, wrong_scrubbed = 0, pages_scrubbed = 0, pages_mended = 0;
  uint64_t prefetch_pages = 0, prefetch_failed_pages = 0, zeros_ahead = 0;
  uint64_t clusters = 0, cluster_pages = 0;
  // Neighbours in the control group: watched, and faulted soon (cluster_choice.h).
  uint64_t cluster_watched = 0, cluster_watched_used = 0;
  std::array<uint64_t, 6> completions_by_status{};
  uint64_t evicted_written = 0, evicted_unchanged = 0, evicted_clean = 0;
  uint64_t evicted_zero = 0, evictions_cancelled = 0;
  uint64_t writes = 0, write_bytes = 0, write_failures = 0;
  // Compressed copies: kept; used in place of a READ; gone without use; bytes of those now here,
  // and the memory that they are in.
  uint64_t compressed_stored = 0, compressed_hits = 0, compressed_dropped = 0;
  uint64_t compressed_bytes = 0, compressed_pool_pages = 0;
  // Of the hits: pages that would have been here if the pool's memory had been theirs.
  uint64_t compressed_early = 0;
  uint64_t faults_compressed = 0;  // of the hits: those that a thread has waited for
  uint64_t transport_fallbacks = 0, channels_broken = 0, replicas_lost = 0;
  std::array<uint64_t, kTransportKinds> connected_by_kind{};
  uint64_t resident_pages = 0, away_pages = 0, budget_pages = 0, leased_slabs = 0;

  uint64_t evictions() const {
    return evicted_written + evicted_unchanged + evicted_clean + evicted_zero;
  }
};

// The same with all times: more than 200 KiB, so it is kept only while something is measured.
struct PagerStats : PagerCounts {
  Histogram fault_ns, queue_ns, wire_ns, install_ns, compressed_ns, zero_ns, evict_batch_ns;

  PagerLatencies latencies() const;
  void add(const WorkerCounts& worker);
  void add(const EvictorCounts& evictor);
  void add(const TargetTimes& times);
  void add(const LinkCounts& links);
  // The names of /metrics (docs/operations.md), as they travel in heartbeats.
  coordinator::Counters counters() const;
};

// Those that the pager is connected by: "shm,tcp"; empty: none.
std::string names_of_transports(const PagerCounts& counts);

}  // namespace farpage::pager
