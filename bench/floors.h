// The floors: what a touch costs where no memory node is involved. Each is measured in random order
// over `pages` pages whose page tables exist already.
#pragma once

#include <cstdint>

#include "base/histogram.h"
#include "base/result.h"

namespace farpage::bench {

struct FloorOptions {
  uint64_t pages = 10'000;
  bool pin = false;  // the touching thread
  uint64_t seed = 1;
};

// A load from a page that is there: no fault, so mostly the clock.
Result<Histogram> measure_present_page(const FloorOptions& options);
// The first store to an anonymous page: the kernel's own shortest fault.
Result<Histogram> measure_zero_fault(const FloorOptions& options);
// A load from a page that a handler in this process installs from a page in its cache. One handler
// on each CPU, blocked in poll(2) on the one descriptor, as the pager's workers are: what is left
// of a remote fault when the wire costs nothing.
Result<Histogram> measure_local_userfault(const FloorOptions& options);

}  // namespace farpage::bench
