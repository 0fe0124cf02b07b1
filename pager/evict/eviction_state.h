// EvictionState: what the evictor keeps for each target.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "base/clock.h"
#include "pager/compress/compression_policy.h"
#include "pager/compress/recent_median.h"
#include "pager/evict/eviction_hand.h"
#include "pager/evict/eviction_priority.h"
#include "pager/evict/eviction_progress.h"
#include "pager/evict/order_choice.h"
#include "pager/evict/unchanged_sample.h"
#include "pager/stats.h"

namespace farpage::pager {

// Threads: the holder of the evictor's turn, but for the first two members,
// EvictionProgress::hopeless() and OrderChoice::returned(): any.
struct EvictionState {
  EvictionState(PageTable& table, bool adaptive_compression)
      : hands{EvictionHand(table, EvictionOrder::kOldest), EvictionHand(table, EvictionOrder::kAny),
              EvictionHand(table, EvictionOrder::kYoungest)},
        compression(adaptive_compression),
        fault_times(adaptive_compression ? std::make_unique<FaultTimes>() : nullptr) {}

  EvictionPriority agent_priority;  // of the target's agent
  // No batch of the target begins while it is not 0.
  std::atomic<int> pauses{0};

  EvictionProgress progress;
  OrderChoice choice;
  std::array<EvictionHand, 3> hands;
  EvictionHand& hand_of(EvictionOrder order) { return hands[static_cast<size_t>(order) - 1]; }
  EvictorCounts counts;  // readers: any
  CompressionPolicy compression;
  // What `compression` compares. Null if it is not adaptive: they take 7 KiB.
  struct FaultTimes {
    RecentMedian remote_fault{std::chrono::microseconds(12)};
    RecentMedian compressed_fault{std::chrono::microseconds(7)};
    RecentMedian wire{Nanoseconds(0)};
  };
  std::unique_ptr<FaultTimes> fault_times;
  UnchangedSample unchanged;
  uint64_t pool_pages = 0;   // of compressed copies, that the budget counts
  bool evicting = false;     // from the pressing mark down to the low one
  bool agent_known = false;  // agent_priority has its thread
  Instant rests_until{0};    // nothing could be evicted
  // Batches in a row that freed nothing, and since when.
  size_t stuck_batches = 0;
  Instant stuck_since{0};
  bool stuck_said = false;
};

}  // namespace farpage::pager
