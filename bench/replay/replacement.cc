#include "bench/replay/replacement.h"

#include <algorithm>
#include <utility>

namespace farpage::bench {
namespace {

constexpr uint8_t kMaxTouches = 3;  // where counters of S3-FIFO saturate

}  // namespace

void PageList::add(uint32_t page) {
  order_.push_front(page);
  place_[page] = order_.begin();
  listed_[page] = true;
}

bool PageList::remove(uint32_t page) {
  if (!listed_[page]) return false;
  order_.erase(place_[page]);
  listed_[page] = false;
  return true;
}

bool Fifo::touch(PageAccess access) {
  if (resident_.has(access.page)) return true;
  if (resident_.size() == capacity_) resident_.remove_oldest();
  resident_.add(access.page);
  return false;
}

bool Clock::touch(PageAccess access) {
  if (frame_of_[access.page] != kNowhere) {
    accessed_[access.page] = true;
    return true;
  }
  const uint64_t frame = free_frame();
  frames_[frame] = access.page;
  frame_of_[access.page] = static_cast<uint32_t>(frame);
  accessed_[access.page] = false;
  return false;
}

void Clock::discard(uint32_t page) {
  const uint32_t frame = std::exchange(frame_of_[page], kNowhere);
  if (frame != kNowhere) frames_[frame] = kNobody;
}

uint64_t Clock::free_frame() {
  for (;;) {
    const uint64_t frame = hand_;
    hand_ = (hand_ + 1) % frames_.size();
    const uint32_t page = frames_[frame];
    if (page == kNobody) return frame;
    if (!accessed_[page]) {
      frame_of_[page] = kNowhere;
      return frame;
    }
    accessed_[page] = false;
  }
}

bool Lru::touch(PageAccess access) {
  if (resident_.has(access.page)) {
    resident_.renew(access.page);
    return true;
  }
  if (resident_.size() == capacity_) resident_.remove_oldest();
  resident_.add(access.page);
  return false;
}

S3Fifo::S3Fifo(uint64_t pages, uint64_t capacity)
    : capacity_(capacity),
      small_target_(std::max<uint64_t>(1, capacity / 10)),
      main_target_(capacity - small_target_),
      pages_(pages),
      small_(pages),
      main_(pages) {}

bool S3Fifo::touch(PageAccess access) {
  Page& page = pages_[access.page];
  if (page.resident) {
    page.touches = std::min<uint8_t>(static_cast<uint8_t>(page.touches + 1), kMaxTouches);
    return true;
  }
  while (small_.size() + main_.size() >= capacity_) evict();
  (is_ghost(page) ? main_ : small_).add(access.page);
  page = {.resident = true};
  return false;
}

void S3Fifo::discard(uint32_t page) {
  if (!small_.remove(page)) (void)main_.remove(page);
  pages_[page] = {};
}

void S3Fifo::evict() {
  if (small_.size() >= small_target_ || main_.size() == 0) {
    evict_small();
  } else {
    evict_main();
  }
}

// Pages touched more than once move to the main queue; the first other page is evicted.
void S3Fifo::evict_small() {
  while (small_.size() > 0) {
    const uint32_t number = small_.oldest();
    small_.remove_oldest();
    if (pages_[number].touches <= 1) {
      pages_[number] = {.ghost = ++ghosts_};
      return;
    }
    pages_[number].touches = 0;
    main_.add(number);
    if (main_.size() > main_target_) evict_main();
  }
}

void S3Fifo::evict_main() {
  while (main_.size() > 0) {
    const uint32_t number = main_.oldest();
    if (pages_[number].touches == 0) {
      pages_[number] = {};
      main_.remove_oldest();
      return;
    }
    --pages_[number].touches;
    main_.renew(number);
  }
}

}  // namespace farpage::bench
