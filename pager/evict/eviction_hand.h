// EvictionHand: chooses the next victim of one order.
//
// A hand moves round the window in address order, as in CLOCK (Corbato, "A paging experiment with
// the Multics system", 1969), so that victims are neighbours. userfaultfd has no accessed bit:
// touches of resident pages are invisible, and the order is one of ages, that is, of installations.
// A page that came back soon after its eviction is skipped several times, as in GCLOCK (Smith,
// "Sequentiality and prefetching in database systems", TODS 1978).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "pager/pages/page_age.h"
#include "pager/pages/page_table.h"

namespace farpage::pager {

// Threads: one; others may change the table meanwhile.
class EvictionHand {
 public:
  // The table outlives the hand. Not for kByHint.
  EvictionHand(PageTable& table, EvictionOrder order);

  struct Due {
    PageIndex page;
    PageWord word;  // Clean or Dirty, when it was looked at
  };
  // The next victim of the block in epoch `now`; none: the block has no more. Each page that is
  // skipped because of its reference count loses one reference.
  std::optional<Due> next_in_block(uint8_t now);
  // The last result of next_in_block() is taken.
  void took() { ++taken_; }
  // Moves to the next block with resident pages, or from the last to the first. False: a round has
  // ended in which a page was taken, or in which none could be taken at any age.
  bool next_block();

 private:
  bool is_due(uint8_t age) const { return age >= lowest_age_ && age <= highest_age_; }
  void skip(PageIndex page, PageWord word, uint8_t now);
  // `all`: the sum of left_.
  uint8_t age_of_oldest(uint64_t all) const;

  PageTable& table_;
  const EvictionOrder order_;
  uint64_t block_ = 0;
  uint64_t page_in_block_ = 0;
  uint8_t lowest_age_ = 0;  // of a victim
  uint8_t highest_age_ = 255;
  std::optional<uint8_t> epoch_;  // when ages were looked at last
  bool spares_ = true;            // false after a round in which almost nothing was taken
  // In this round:
  uint64_t taken_ = 0, spared_ = 0;
  std::array<uint32_t, 256> left_{};  // pages that were not due, by age
};

}  // namespace farpage::pager
