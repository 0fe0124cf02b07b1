// EvictionHand: chooses the next victim.
//
// A hand moves round the window in address order, as in CLOCK (Corbato, "A paging experiment with
// the Multics system", 1969), so that victims are neighbours. userfaultfd has no accessed bit:
// touches of resident pages are invisible. The hand knows how soon a page came back after its
// eviction, as in the kernel's workingset detection (mm/workingset.c) and the ghost queue of
// S3-FIFO (Yang et al., SOSP 2023). The hand skips a page that came back soon several times, as in
// GCLOCK (Smith, "Sequentiality and prefetching in database systems", TODS 1978).
#pragma once

#include <cstdint>
#include <optional>

#include "pager/pages/page_age.h"
#include "pager/pages/page_table.h"

namespace farpage::pager {

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
  // skipped because of its reference count loses one reference.
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
