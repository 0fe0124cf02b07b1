// Cluster: pages that are fetched together because they lie together.
#pragma once

#include <cstdint>

#include "base/strong.h"

namespace farpage::pager {

// Pages of an aligned group: page first + i if bit i of `members` is set.
struct Cluster {
  static constexpr uint32_t kPages = 8;
  PageIndex first;
  uint32_t members = 0;

  bool has(uint64_t page) const {
    return page >= first.value && page - first.value < kPages &&
           (members >> (page - first.value) & 1) != 0;
  }
};

}  // namespace farpage::pager
