// PagerModel: the pager's replacement policy, with its page table and eviction hand, without a
// kernel, threads or a wire.
//
// It sees what the pager sees: touches of remote pages, the first write to a page that a read
// installed, and writes to pages that were write-protected with a span of victims. All other
// touches are hits and invisible to it. A batch of victims is evicted atomically, so no write
// cancels an eviction.
#pragma once

#include "bench/replay/replacement.h"
#include "pager/evict/eviction_state.h"
#include "pager/options.h"
#include "pager/pages/page_table.h"

namespace farpage::bench {

// Threads: one.
class PagerModel final : public ReplacementPolicy {
 public:
  // `capacity`: the budget (--local); the water marks are those of `options`.
  PagerModel(uint64_t pages, uint64_t capacity, const pager::PagerOptions& options = {});
  bool touch(PageAccess access) override;
  void discard(uint32_t page) override;

  uint64_t resident_pages() const { return used_; }

 private:
  uint8_t epoch() const { return pager::epoch_of(age_clock_); }
  void install(PageAccess access, pager::PageWord word);
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
  uint64_t used_ = 0;
  uint64_t age_clock_ = 0;
};

}  // namespace farpage::bench
