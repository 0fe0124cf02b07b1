// EvictionHand: chooses the next victim.
//
// A hand moves round the window in address order, as in CLOCK (Corbato, "A paging experiment with
// the Multics system", 1969), so that victims are neighbours. userfaultfd has no accessed bit:
// touches of resident pages are invisible. The hand knows how soon a page came back after its
// eviction, as in the kernel's workingset detection (mm/workingset.c) and the ghost queue of
// S3-FIFO (Yang et al., SOSP 2023). The hand skips a page that came back soon several times, as in
// GCLOCK (Smith, "Sequentiality and prefetching in database systems", TODS 1978).
//
// Time is counted in epochs: 16 pass while as many pages are installed as the budget has.
#pragma once

#include <cstdint>
#include <optional>

#include "pager/page_table.h"

namespace farpage::pager {

inline constexpr uint64_t kEpochsOfBudget = 16;
inline constexpr uint8_t kMinimumAge = 2;  // epochs; a younger page is skipped
// A page that was away for fewer epochs than this came back soon. Epochs wrap: one in twenty of the
// pages that stay away for very long looks like one that comes back soon.
inline constexpr uint8_t kSoonEpochs = 12;
inline constexpr uint32_t kPassesOfReturn = 8;  // for coming back soon; at most 15

// Age is counted in installations. Each installation advances the clock by age_step(), which
// depends on the budget, so that as many installations as the budget has pages are kEpochsOfBudget
// epochs. The epoch wraps at 256.
constexpr uint64_t age_step(uint64_t budget_pages) {
  return (uint64_t{kEpochsOfBudget} << 32) / (budget_pages + 1);
}
constexpr uint8_t epoch_of(uint64_t age_clock) {
  return static_cast<uint8_t>(age_clock >> 32);
}

// Words of a page in epoch `now`:
// it is evicted, or installed without a touch, or for the first time;
constexpr PageWord stamped(PageWord word, uint8_t now) {
  return word.with_epoch(now).with_passes(0);
}
// it is installed again because of a touch: `word` has the epoch of its eviction.
constexpr PageWord came_back(PageWord word, uint8_t now) {
  const bool soon = static_cast<uint8_t>(now - word.epoch()) < kSoonEpochs;
  return stamped(word, now).with_passes(soon ? kPassesOfReturn : 0);
}
// It is resident, and a write has hit a protection of the evictor.
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
  // The next victim of the block in epoch `now`; none: the block has no more. Each page that is
  // skipped because of its passes loses one pass.
  std::optional<Due> next_in_block(uint8_t now);
  // The last result of next_in_block() is taken.
  void took() { ++taken_; }
  // Moves to the next block with resident pages, or from the last to the first. False: a round has
  // ended in which a page was taken, or in which none could be taken at any age.
  bool next_block();

 private:
  PageTable& table_;
  uint64_t block_ = 0;
  uint64_t page_in_block_ = 0;
  uint8_t minimum_age_ = kMinimumAge;  // halved after a round in which nothing was old enough
  bool spares_ = true;                 // false after a round in which almost nothing was taken
  uint64_t taken_ = 0, spared_ = 0;    // in this round
};

}  // namespace farpage::pager
