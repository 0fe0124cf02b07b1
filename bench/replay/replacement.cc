#include "bench/replay/replacement.h"

#include <algorithm>

namespace farpage::bench {
namespace {

constexpr uint8_t kMaxTouches = 3;  // where counters of S3-FIFO saturate

}  // namespace

bool Fifo::touch(PageAccess access) {
  if (resident_[access.page]) return true;
  if (used_ < ring_.size()) {
    ring_[used_++] = access.page;
  } else {
    resident_[ring_[oldest_]] = false;
    ring_[oldest_] = access.page;
    oldest_ = (oldest_ + 1) % ring_.size();
  }
  resident_[access.page] = true;
  return false;
}

bool Clock::touch(PageAccess access) {
  if (resident_[access.page]) {
    accessed_[access.page] = true;
    return true;
  }
  frames_[free_frame()] = access.page;
  resident_[access.page] = true;
  accessed_[access.page] = false;
  return false;
}

uint64_t Clock::free_frame() {
  if (used_ < frames_.size()) return used_++;
  for (;; hand_ = (hand_ + 1) % frames_.size()) {
    const uint32_t page = frames_[hand_];
    if (!accessed_[page]) {
      resident_[page] = false;
      const uint64_t frame = hand_;
      hand_ = (hand_ + 1) % frames_.size();
      return frame;
    }
    accessed_[page] = false;
  }
}

bool Lru::touch(PageAccess access) {
  if (resident_[access.page]) {
    order_.splice(order_.begin(), order_, place_[access.page]);
    return true;
  }
  if (order_.size() == capacity_) {
    resident_[order_.back()] = false;
    order_.pop_back();
  }
  order_.push_front(access.page);
  place_[access.page] = order_.begin();
  resident_[access.page] = true;
  return false;
}

S3Fifo::S3Fifo(uint64_t pages, uint64_t capacity)
    : capacity_(capacity),
      small_target_(std::max<uint64_t>(1, capacity / 10)),
      main_target_(capacity - small_target_),
      pages_(pages) {}

bool S3Fifo::touch(PageAccess access) {
  Page& page = pages_[access.page];
  if (page.resident) {
    page.touches = std::min<uint8_t>(static_cast<uint8_t>(page.touches + 1), kMaxTouches);
    return true;
  }
  while (small_.size() + main_.size() >= capacity_) evict();
  (is_ghost(page) ? main_ : small_).push_front(access.page);
  page = {.resident = true};
  return false;
}

void S3Fifo::evict() {
  if (small_.size() >= small_target_ || main_.empty()) {
    evict_small();
  } else {
    evict_main();
  }
}

// Pages touched more than once move to the main queue; the first other page is evicted.
void S3Fifo::evict_small() {
  while (!small_.empty()) {
    const uint32_t number = small_.back();
    small_.pop_back();
    if (pages_[number].touches <= 1) {
      pages_[number] = {.ghost = ++ghosts_};
      return;
    }
    pages_[number].touches = 0;
    main_.push_front(number);
    if (main_.size() > main_target_) evict_main();
  }
}

void S3Fifo::evict_main() {
  while (!main_.empty()) {
    const uint32_t number = main_.back();
    if (pages_[number].touches == 0) {
      pages_[number] = {};
      main_.pop_back();
      return;
    }
    --pages_[number].touches;
    main_.splice(main_.begin(), main_, std::prev(main_.end()));
  }
}

}  // namespace farpage::bench
