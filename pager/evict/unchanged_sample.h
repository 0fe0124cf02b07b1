// UnchangedSample: which Dirty victims are compared with what their slots have, where READs are not
// checked and nobody else needs their checksums.
//
// A checksum costs 0.3 us, of a page in the cache. Where few pages are unchanged, only one in eight
// is compared, always the same ones, which show when that changes.
#pragma once

#include <cstdint>

#include "base/strong.h"

namespace farpage::pager {

// Threads: one at a time.
class UnchangedSample {
 public:
  // Is this page worth a checksum now?
  bool wants(PageIndex page) const {
    return is_sample(page) || tested_ < kFirst || unchanged_ * kOneIn > tested_;
  }
  // A page whose slot's checksum is known was compared.
  void compared(bool unchanged) {
    unchanged_ += unchanged ? 1 : 0;
    if (++tested_ < kMemory) return;
    tested_ /= 2;
    unchanged_ /= 2;
  }

 private:
  static constexpr uint32_t kSampleBits = 3;
  static constexpr uint32_t kFirst = 64;    // that are compared before the first choice
  static constexpr uint32_t kOneIn = 16;    // unchanged: worth it
  static constexpr uint32_t kMemory = 512;  // then both counts are halved

  // Scattered, so that strides do not matter.
  static bool is_sample(PageIndex page) {
    return (page.value * 0x9E3779B97F4A7C15U) >> (64 - kSampleBits) == 0;
  }

  uint32_t tested_ = 0;
  uint32_t unchanged_ = 0;
};

}  // namespace farpage::pager
