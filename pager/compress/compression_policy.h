// CompressionPolicy: whether compressed copies are worth their memory and their time, and how much
// of the share of the budget they get.
//
// Costs and benefits are those of Wilson, Kaplan and Smaragdakis, "The case for compressed caching
// in virtual memory systems" (USENIX 1999): the pages of the pool would otherwise be resident. A
// copy that is used before as many pages have left as the pool has would not have been needed:
// without the pool that page would still be here, so it costs a fault. Each other one saves a READ.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farpage::pager {

// Threads: the holder of the evictor's turn.
class CompressionPolicy {
 public:
  static constexpr uint32_t kParts = 16;  // of the share
  static constexpr uint32_t kFirstPart = 4;
  static constexpr uint32_t kMostPercent = 40;  // of a page, on average: else it does not compress
  static constexpr uint32_t kSampleEvery = 32;  // pages, where they do not compress
  static constexpr uint32_t kWindow = 128;      // tries, of which that is the average
  static constexpr uint32_t kFewest = 1024;     // pages that leave between two reviews
  static constexpr uint32_t kPause = 16;        // reviews without copies, where they do harm
  // What a try costs the evictor, in part beside the program's threads, and a fault besides what
  // the pager sees of it.
  static constexpr int64_t kTryNs = 1000;
  static constexpr int64_t kKernelNs = 3000;

  // Not adaptive: every page is tried, and the copies get the whole share.
  explicit CompressionPolicy(bool adaptive) : adaptive_(adaptive) {}

  // Is a copy of the next page that leaves to be tried?
  bool tries_next();
  // `bytes`: of the copy; that of a page if it was too large to be kept.
  void tried(size_t bytes);
  // The pages that copies may have of their share.
  uint64_t part_of(uint64_t share_pages) const {
    return adaptive_ ? share_pages * part_ / kParts : share_pages;
  }

  // Sums since the start, but for the first.
  struct Use {
    uint64_t pool_pages = 0;
    uint64_t departures = 0;  // pages that have left
    uint64_t hits = 0;
    uint64_t early_hits = 0;  // of them: without a pool these pages would have been here
    // Means; 0: not known yet.
    double remote_fault_ns = 0;      // answered by a READ
    double compressed_fault_ns = 0;  // answered from a copy
  };
  // Is it time for review()?
  bool is_due(uint64_t departures, uint64_t pool_pages) const {
    return adaptive_ && departures - reviewed_.departures >= review_after(pool_pages);
  }
  void review(const Use& use);

 private:
  static uint64_t review_after(uint64_t pool_pages) {
    return 2 * pool_pages > kFewest ? 2 * pool_pages : kFewest;
  }

  const bool adaptive_;
  bool compressible_ = true;
  uint32_t part_ = kFirstPart;
  uint32_t pause_ = 0;    // reviews that are left of it
  uint32_t skipped_ = 0;  // pages since the last sample
  uint32_t tries_ = 0;    // of this window
  uint64_t bytes_ = 0;    // of their copies
  uint64_t tries_since_review_ = 0;
  Use reviewed_;
};

}  // namespace farpage::pager
