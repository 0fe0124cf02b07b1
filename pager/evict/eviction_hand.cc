#include "pager/evict/eviction_hand.h"

#include <algorithm>
#include <utility>

namespace farpage::pager {
namespace {

// A round that passes over this many pages for each one taken is too expensive.
constexpr uint64_t kSparedForOne = 64;

}  // namespace

std::optional<EvictionHand::Due> EvictionHand::next_in_block(uint8_t now) {
  const uint64_t first = block_ * kPagesPerBlock;
  const uint64_t pages = std::min<uint64_t>(kPagesPerBlock, table_.pages() - first);
  while (page_in_block_ < pages) {
    const PageIndex page{first + page_in_block_++};
    const PageWord word = table_.load(page);
    if (word.state() != PageState::kClean && word.state() != PageState::kDirty) continue;
    if (static_cast<uint8_t>(now - word.epoch()) < minimum_age_) continue;
    if (!spares_ || word.references() == 0) return Due{page, word};
    (void)table_.set_references(page, word,
                                word.references() - 1);  // fails if it was touched just now
    ++spared_;
  }
  return std::nullopt;
}

bool EvictionHand::next_block() {
  page_in_block_ = 0;
  do {
    const uint64_t page = table_.next_used((block_ + 1) * kPagesPerBlock);
    block_ = page < table_.pages() ? page / kPagesPerBlock : table_.blocks();
  } while (block_ < table_.blocks() && table_.resident_in_block(block_) == 0);
  if (block_ < table_.blocks()) return true;
  block_ = 0;
  const uint64_t taken = std::exchange(taken_, 0);
  const uint64_t spared = std::exchange(spared_, 0);
  if (taken > 0) {
    minimum_age_ = kMinimumAge;
    spares_ = spared < taken * kSparedForOne;
    return false;
  }
  // If a round spared every page, the next one spares none. This costs one round, however many
  // references there are.
  if (std::exchange(spares_, false)) return true;
  if (minimum_age_ == 0) return false;
  minimum_age_ = static_cast<uint8_t>(minimum_age_ / 2);  // all remaining pages are younger
  return true;
}

}  // namespace farpage::pager
