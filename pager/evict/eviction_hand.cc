#include "pager/evict/eviction_hand.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace farpage::pager {
namespace {

// A round that passes over this many pages for each one taken is too expensive.
constexpr uint64_t kSparedForOne = 64;
// A round of kOldest takes about one of so many pages: more of them would take younger pages before
// older ones of higher addresses, and fewer would look at more pages for each victim.
constexpr uint64_t kRoundsOfBudget = 16;
constexpr uint8_t kFirstLowestAge = kEpochsOfBudget - 2;
constexpr uint8_t kSettledAge = 2;  // a younger page may be in use by who has just touched it
constexpr uint8_t kYoungAge = 2;

}  // namespace

EvictionHand::EvictionHand(PageTable& table, EvictionOrder order) : table_(table), order_(order) {
  switch (order) {
    case EvictionOrder::kByHint:
    case EvictionOrder::kOldest:
      lowest_age_ = kFirstLowestAge;
      break;
    case EvictionOrder::kAny:
      lowest_age_ = kSettledAge;
      break;
    case EvictionOrder::kYoungest:
      lowest_age_ = 1;
      highest_age_ = kYoungAge;
      break;
  }
}

std::optional<EvictionHand::Due> EvictionHand::next_in_block(uint8_t now) {
  if (order_ == EvictionOrder::kOldest)  // the same pages, which are older now
    lowest_age_ = static_cast<uint8_t>(
        std::min(255, lowest_age_ + static_cast<uint8_t>(now - epoch_.value_or(now))));
  epoch_ = now;
  const uint64_t first = block_ * kPagesPerBlock;
  const uint64_t pages = std::min<uint64_t>(kPagesPerBlock, table_.pages() - first);
  while (page_in_block_ < pages) {
    const PageIndex page{first + page_in_block_++};
    const PageWord word = table_.load(page);
    if (word.state() != PageState::kClean && word.state() != PageState::kDirty) continue;
    const auto age = static_cast<uint8_t>(now - word.epoch());
    if (!is_due(age)) {
      ++left_[age];
    } else if (spares_ && word.references() > 0 && order_ != EvictionOrder::kYoungest) {
      skip(page, word, now);
    } else {
      return Due{page, word};
    }
  }
  return std::nullopt;
}

// In order of age it is as if the page were installed now: it comes to its turn again after all
// others.
void EvictionHand::skip(PageIndex page, PageWord word, uint8_t now) {
  const uint8_t epoch = order_ == EvictionOrder::kOldest ? now : word.epoch();
  (void)table_.set_age(page, word, epoch, word.references() - 1);
  ++spared_;
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
  const uint64_t left = std::accumulate(left_.begin(), left_.end(), uint64_t{0});
  if (order_ == EvictionOrder::kOldest) lowest_age_ = age_of_oldest(left);
  left_.fill(0);
  if (taken > 0) {
    if (order_ == EvictionOrder::kAny) lowest_age_ = kSettledAge;
    spares_ = spared < taken * kSparedForOne;
    return false;
  }
  if (order_ == EvictionOrder::kYoungest) return false;
  if (left > 0) {
    if (order_ == EvictionOrder::kAny) lowest_age_ = 0;
    return true;
  }
  // If a round spared every page, the next one spares none. This costs one round, however many
  // references there are.
  return std::exchange(spares_, false) && spared > 0;
}

// So that about 1 / kRoundsOfBudget of the pages that are left are due.
uint8_t EvictionHand::age_of_oldest(uint64_t all) const {
  uint64_t older = 0;
  for (size_t age = left_.size(); age-- > 0;) {
    older += left_[age];
    if (older * kRoundsOfBudget >= all && older > 0) return static_cast<uint8_t>(age);
  }
  return 0;
}

}  // namespace farpage::pager
