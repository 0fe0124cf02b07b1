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
inline constexpr uint8_t kMinimumAge = 2;  // epochs; a younger page is skipped
// A page that was away for fewer epochs than this came back soon. Epochs wrap: one in twenty of the
// pages that stay away for very long looks like one that comes back soon.
inline constexpr uint8_t kSoonEpochs = 12;
inline constexpr uint32_t kReferencesOfReturn = 8;  // for coming back soon; at most 15

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
