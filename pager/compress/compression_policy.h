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

// Each review adds what has been won and lost since the last one to a balance, in nanoseconds.
// Where too much is lost, there are no copies for a while; then they are tried again, and the pause
// gets longer each time that this was in vain.
//
// Threads: the holder of the evictor's turn.
class CompressionPolicy {
 public:
  static constexpr uint32_t kMostPercent = 40;  // of a page, on average: else it does not compress
  static constexpr uint32_t kSampleEvery = 32;  // pages, where they do not compress
  static constexpr uint32_t kWindow = 128;      // tries, of which that is the average
  static constexpr uint64_t kFewest = 1024;     // pages that leave between two reviews
  // The costs of a try, and of an early hit besides the fault that the pager sees: the kernel's
  // part of it, and one more eviction. Measured (docs/experiments/compressed-tier.md).
  static constexpr int64_t kTryNs = 4000;
  static constexpr int64_t kEarlyNs = 8000;
  // A READ that is faster takes no longer than decompressing: there are no copies then.
  static constexpr uint64_t kLeastWireNs = 2000;
  // What may be lost: as much as the first filling of the share costs.
  static constexpr int64_t kLossNs = 50'000'000;
  static constexpr int64_t kLossOfSharePageNs = 60'000;
  static constexpr int64_t kTrialPart = 4;  // of that, after a pause
  // Pages that leave during a pause, in shares, and how often it may double.
  static constexpr uint64_t kPauseShares = 8;
  static constexpr uint32_t kMostDoublings = 5;

  // Not adaptive: every page is tried, and the copies get the whole share.
  explicit CompressionPolicy(bool adaptive) : adaptive_(adaptive) {}

  // Is a copy of the next page that leaves to be tried?
  bool tries_next();
  // `bytes`: of the copy; that of a page if it was too large to be kept.
  void tried(size_t bytes);
  // The pages that copies may have of their share.
  uint64_t part_of(uint64_t share_pages) const {
    return !adaptive_ || (on_ && compressible_) ? share_pages : 0;
  }

  struct Use {
    uint64_t share_pages = 0;
    // Sums since the start.
    uint64_t departures = 0;  // pages that have left
    uint64_t hits = 0;
    uint64_t early_hits = 0;  // of them: without a pool these pages would have been here
    // Medians.
    uint64_t remote_fault_ns = 0;      // answered by a READ
    uint64_t compressed_fault_ns = 0;  // answered from a copy
    uint64_t wire_ns = 0;              // of a READ, posted to completed; 0: not known yet
  };
  // Is it time for review()?
  bool is_due(uint64_t departures) const {
    return adaptive_ && departures - reviewed_.departures >= kFewest;
  }
  void review(const Use& use);

 private:
  const bool adaptive_;
  bool compressible_ = true;
  uint32_t skipped_ = 0;  // pages since the last sample
  uint32_t tries_ = 0;    // of this window
  uint64_t bytes_ = 0;    // of their copies
  bool on_ = true;
  bool on_trial_ = false;  // after a pause
  int64_t balance_ns_ = 0;
  uint64_t paused_at_ = 0;  // departures
  uint32_t doublings_ = 0;  // of the pause
  uint64_t tries_since_review_ = 0;
  Use reviewed_;
};

}  // namespace farpage::pager
