// AccessMap: the access pattern that the target has announced: madvise(2)'s NORMAL, RANDOM and
// SEQUENTIAL.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/mapping.h"
#include "base/result.h"
#include "uffd/address_space.h"

namespace farpage::pager {

enum class AccessPattern : uint8_t {
  kNormal,      // prefetch follows detected trends (trend.h)
  kRandom,      // no prefetch
  kSequential,  // the following pages are prefetched from the first fault on
};

// One byte for each 16 pages: the edges of a range are rounded to that, since advice may be
// inexact. Threads: any; no locks.
class AccessMap {
 public:
  static Result<AccessMap> create(uint64_t pages);

  AccessPattern of(PageIndex page) const {
    return bytes()[page.value / kGranulePages].load(std::memory_order_relaxed);
  }
  void set(uffd::PageRun run, AccessPattern pattern);

 private:
  static constexpr uint64_t kGranulePages = 16;

  explicit AccessMap(Mapping memory) : memory_(std::move(memory)) {}
  std::atomic<AccessPattern>* bytes() const {
    return reinterpret_cast<std::atomic<AccessPattern>*>(memory_.data());
  }

  Mapping memory_;  // zeroed: all kNormal
};

}  // namespace farpage::pager
