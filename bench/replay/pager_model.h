// PagerModel: the pager's replacement policy, with its page table and eviction hand, without a
// kernel, threads or a wire.
//
// It sees what the pager sees: touches of remote pages, the first write to a page that a read
// installed, and writes to pages that were write-protected with a span of victims. All other
// touches are hits and invisible to it. A batch of victims is evicted atomically, so no write
// cancels an eviction. Pages that are fetched ahead are there at once, and find room.
#pragma once

#include "bench/replay/replacement.h"
#include "pager/evict/eviction_state.h"
#include "pager/fault/cluster_choice.h"
#include "pager/fault/trend.h"
#include "pager/options.h"
#include "pager/pages/page_table.h"

namespace farpage::bench {

enum class Ahead : uint8_t { kNothing, kStreams, kClusters };  // kClusters: and streams

// Threads: one.
class PagerModel final : public ReplacementPolicy {
 public:
  // `capacity`: the budget (--local); the water marks are those of `options`.
  PagerModel(uint64_t pages, uint64_t capacity, Ahead ahead = Ahead::kNothing,
             const pager::PagerOptions& options = {});
  bool touch(PageAccess access) override;
  void discard(uint32_t page) override;

  uint64_t pages_ahead() const override { return pages_ahead_; }
  uint64_t reads_ahead() const override { return reads_ahead_; }

  uint64_t resident_pages() const { return used_; }

 private:
  uint8_t epoch() const { return pager::epoch_of(age_clock_); }
  // Evicts if the next page would need it.
  void make_room();
  // `expected`: it is used, or expected to be (came_back()).
  void install(PageAccess access, pager::PageWord word, bool expected = true);
  void fetch_ahead(PageIndex page, pager::PageWord word);
  void fetch_ahead(const pager::PrefetchPlan& plan);
  // Fetches a page if it is remote. `together`: in one READ with the page before it, if that was
  // fetched ahead, too.
  void bring(uint64_t page, bool together, bool of_cluster);
  void write_resident(PageIndex page, pager::PageWord word);
  bool evict_batch();
  void protect_spans();
  void pick(pager::EvictionOrder order);
  void drop(PageIndex page, pager::EvictionOrder order);

  const uint64_t capacity_;
  const uint64_t high_, low_;
  pager::PageTable table_;
  pager::EvictionState eviction_{table_, false};
  std::vector<bool> protected_;     // Dirty pages whose next write faults nevertheless
  std::vector<PageIndex> victims_;  // of the batch, in address order
  const Ahead ahead_;
  const uint32_t depth_;  // of prefetch
  pager::TrendDetector trends_;
  pager::ClusterChoice clusters_;
  uint64_t brought_last_ = UINT64_MAX;
  uint64_t pages_ahead_ = 0;
  uint64_t reads_ahead_ = 0;
  uint64_t used_ = 0;
  uint64_t age_clock_ = 0;
};

}  // namespace farpage::bench
