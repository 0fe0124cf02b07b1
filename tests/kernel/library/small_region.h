// A region of this process over nodes of this process, small enough that it pages all the time.
#pragma once

#include <farpage/region.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace farpage {

inline constexpr size_t kPage = 4096;

inline RegionOptions small_options() {
  RegionOptions options;
  options.bytes = uint64_t{8} << 20;
  options.local_bytes = uint64_t{2} << 20;
  options.slab_bytes = uint64_t{2} << 20;
  options.workers = 2;
  return options;
}

inline Region make_region(const RegionOptions& options = small_options()) {
  RegionResult<Region> region = Region::create(options);
  if (!region) {
    ADD_FAILURE() << region.error().message;
    std::abort();
  }
  return std::move(*region);
}

inline volatile uint64_t* word(const Region& region, size_t page) {
  return reinterpret_cast<volatile uint64_t*>(region.bytes().data() + page * kPage);
}
inline size_t pages_of(const Region& region) {
  return region.bytes().size() / kPage;
}

// Counters are written just after a thread was woken, and eviction is another thread's work.
template <typename Condition>
bool eventually(Condition condition) {
  for (int tries = 0; tries < 5000; ++tries) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace farpage
