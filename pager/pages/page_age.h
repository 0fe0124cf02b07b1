// The age of pages, and how often a page came back soon after its eviction.
//
// Time is counted in epochs: 16 pass while as many pages are installed as the budget has. The
// reference count of a page is that of GCLOCK (Smith, "Sequentiality and prefetching in database
// systems", TODS 1978): the eviction hand skips the page that many times.
#pragma once

#include <cstdint>

#include "pager/pages/page_state.h"

namespace farpage::pager {

inline constexpr uint64_t kEpochsOfBudget = 16;
// A page that was away for fewer epochs than this came back soon. Epochs wrap: one in twenty of the
// pages that stay away for very long looks like one that comes back soon.
inline constexpr uint8_t kSoonEpochs = 12;
inline constexpr uint32_t kReferencesOfReturn = 15;  // for coming back soon: all that 4 bits hold

// By which order a page has left (order_choice.h). A remote page has it in place of references.
enum class EvictionOrder : uint8_t {
  kByHint = 0,    // the program has called it cold, or nothing is known
  kOldest = 1,    // first in, first out, with references
  kAny = 2,       // in the order of addresses, whatever the age
  kYoungest = 3,  // what was installed last: the others stay
};

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
// it is evicted;
constexpr PageWord departed(PageWord word, EvictionOrder order, uint8_t now) {
  return word.with_epoch(now).with_references(static_cast<uint32_t>(order));
}
constexpr EvictionOrder order_of(PageWord away) {
  const uint32_t order = away.references();
  return order > static_cast<uint32_t>(EvictionOrder::kYoungest)
             ? EvictionOrder::kByHint
             : static_cast<EvictionOrder>(order);
}
// it is installed without a touch, or for the first time;
constexpr PageWord stamped(PageWord word, uint8_t now) {
  return word.with_epoch(now).with_references(0);
}
// it is installed again because of a touch: `word` has the epoch of its eviction.
constexpr PageWord came_back(PageWord word, uint8_t now) {
  const bool soon = static_cast<uint8_t>(now - word.epoch()) < kSoonEpochs;
  return stamped(word, now).with_references(soon ? kReferencesOfReturn : 0);
}
// It is resident, and a write has hit a protection of the evictor.
constexpr PageWord in_use(PageWord word) {
  return word.references() > 0 ? word : word.with_references(1);
}

}  // namespace farpage::pager
