// EvictionHand: which resident page leaves next.
//
// A hand goes round the window in address order, as in CLOCK (Corbato, "A paging experiment with
// the Multics system", 1969), so that victims lie together. userfaultfd has no accessed bit: a
// touch of a resident page is not seen. What is seen is how soon a page comes back after it has
// left, as in the kernel's workingset detection (mm/workingset.c) and the ghost queue of S3-FIFO
// (Yang et al., SOSP 2023). A page that comes back soon is passed over by the hand several times,
// as in GCLOCK (Smith, "Sequentiality and prefetching in database systems", TODS 1978).
//
// Time is counted in epochs: 16 pass while as many pages are installed as the budget has.
#pragma once

#include <cstdint>
#include <optional>

#include "pager/page_table.h"

namespace farpage::pager {

inline constexpr uint64_t kEpochsOfBudget = 16;
inline constexpr uint8_t kMinimumAge = 2;  // epochs; a younger page is passed over
// Away for fewer epochs than this is soon. Epochs wrap: one in twenty of the pages that stay away
// for very long looks like one that comes back soon.
inline constexpr uint8_t kSoonEpochs = 12;
inline constexpr uint32_t kPassesOfReturn = 8;  // for coming back soon; at most 15

// Age is counted in installations. The clock moves by age_step() at each of them, which another
// budget changes, so that a budget's worth of them is kEpochsOfBudget epochs; an epoch wraps at
// 256.
constexpr uint64_t age_step(uint64_t budget_pages) {
  return (uint64_t{kEpochsOfBudget} << 32) / (budget_pages + 1);
}
constexpr uint8_t epoch_of(uint64_t age_clock) {
  return static_cast<uint8_t>(age_clock >> 32);
}

// Words of a page in epoch `now`:
// it leaves, or comes without having been touched, or for the first time;
constexpr PageWord stamped(PageWord word, uint8_t now) {
  return word.with_epoch(now).with_passes(0);
}
// it comes back because it was touched: `word` has the epoch of its eviction.
constexpr PageWord came_back(PageWord word, uint8_t now) {
  const bool soon = static_cast<uint8_t>(now - word.epoch()) < kSoonEpochs;
  return stamped(word, now).with_passes(soon ? kPassesOfReturn : 0);
}
// It is resident, and a write has met a protection of the evictor.
constexpr PageWord in_use(PageWord word) {
  return word.passes() > 0 ? word : word.with_passes(1);
}

// Threads: one; others may change the table meanwhile.
class EvictionHand {
 public:
  // The table outlives the hand.
  explicit EvictionHand(PageTable& table) : table_(table) {}

  struct Due {
    PageIndex page;
    PageWord word;  // Clean or Dirty, when it was looked at
  };
  // The next page of the block that is to leave in epoch `now`; none: the block has no more. Each
  // page that is passed over for its passes has one less afterwards.
  std::optional<Due> next_in_block(uint8_t now);
  // What next_in_block() said last is taken.
  void took() { ++taken_; }
  // On to the next block with resident pages, or from the last to the first of all. False: a round
  // has ended in which something was taken, or in which nothing could be, whatever its age.
  bool next_block();

 private:
  PageTable& table_;
  uint64_t block_ = 0;
  uint64_t page_in_block_ = 0;
  uint8_t minimum_age_ = kMinimumAge;  // halved after a round in which nothing was old enough
  bool spares_ = true;                 // false after a round in which next to nothing was taken
  uint64_t taken_ = 0, spared_ = 0;    // in this round
};

}  // namespace farpage::pager
