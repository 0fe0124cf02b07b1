// EvictionHand: which resident page leaves next.
//
// A hand goes round the window in address order, as in CLOCK (Corbato, "A paging experiment with
// the Multics system", 1969), so that victims lie together. userfaultfd has no accessed bit: what
// is known of a page is when it was installed, in epochs (16 pass while as many pages are installed
// as the budget has).
#pragma once

#include <cstdint>
#include <optional>

#include "pager/page_table.h"

namespace farpage::pager {

inline constexpr uint64_t kEpochsOfBudget = 16;
inline constexpr uint8_t kMinimumAge = 8;  // epochs; a younger page is passed over

// The epoch in which the installation with this number falls; it wraps at 256.
constexpr uint8_t epoch_of(uint64_t installs, uint64_t budget_pages) {
  return static_cast<uint8_t>(installs / (budget_pages / kEpochsOfBudget + 1));
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
  uint64_t block() const { return block_; }
  // The next page of the block that is to leave in epoch `now`; none: the block has no more.
  std::optional<Due> next_in_block(uint8_t now);
  // What next_in_block() said last is taken.
  void took() { took_any_ = true; }
  // On to the next block. False: a round has ended in which something was taken, or in which
  // nothing could be, whatever its age.
  bool next_block();

 private:
  PageTable& table_;
  uint64_t block_ = 0;
  uint64_t page_in_block_ = 0;
  uint8_t minimum_age_ = kMinimumAge;  // halved after a round in which nothing was old enough
  bool took_any_ = false;              // in this round
};

}  // namespace farpage::pager
