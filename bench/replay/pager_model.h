// PagerModel: the pager's replacement policy, with its page table and eviction hand, without a
// kernel, threads or a wire.
//
// It sees what the pager sees: touches of remote pages, the first write to a page that a read
// installed, and writes to pages that were write-protected with a span of victims. All other
// touches are hits and invisible to it. A batch of victims is evicted atomically, so no write
// cancels an eviction. Pages that are fetched ahead are there at once, and find room. A page is
// unchanged when it leaves if it was not written since it came: the bytes are not known.
#pragma once

#include "bench/replay/replacement.h"
#include "pager/evict/eviction_state.h"
#include "pager/fault/cluster_choice.h"
#include "pager/fault/trend.h"
#include "pager/options.h"
#include "pager/pages/page_table.h"
#include "pager/pages/write_guess.h"

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

  PolicyCounts counts() const override { return counts_; }

  uint64_t resident_pages() const { return used_; }

 private:
  uint8_t epoch() const { return pager::epoch_of(age_clock_); }
  // Evicts if the next page would need it.
  void make_room();
  // `writable`: without waiting for a write. `expected`: it is used, or expected to be
  // (came_back()).
  void install(PageAccess access, pager::PageWord word, bool writable, bool expected = true);
  void fetch_ahead(PageIndex page, pager::PageWord word);
  void fetch_ahead(const pager::PrefetchPlan& plan);
  // Fetches those of some neighbours that are remote. Runs of these have one READ.
  void bring(uint64_t first, uint32_t pages, bool of_cluster);
  void bring_run(uint64_t first, uint32_t pages, bool of_cluster);
  void write_resident(PageIndex page, pager::PageWord word);
  bool evict_batch();
  void protect_spans();
  void pick(pager::EvictionOrder order);
  // As the phases of EvictionBatch.
  void drop(PageIndex page, pager::EvictionOrder order);
  bool leaves_written(PageIndex page, pager::PageWord word);

  const uint64_t capacity_;
  const uint64_t high_, low_;
  pager::PageTable table_;
  pager::EvictionState eviction_{table_, false};
  pager::WriteGuess write_guess_;
  std::vector<bool> protected_;     // Dirty pages whose next write faults nevertheless
  std::vector<bool> written_;       // since they came
  std::vector<PageIndex> victims_;  // of the batch, in address order
  const Ahead ahead_;
  const uint32_t depth_;  // of prefetch
  pager::TrendDetector trends_;
  pager::ClusterChoice clusters_;
  PolicyCounts counts_;
  uint64_t used_ = 0;
  uint64_t age_clock_ = 0;
};

}  // namespace farpage::bench
