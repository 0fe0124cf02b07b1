// The floors: the cost of a touch without a memory node. Each is measured in random order over
// `pages` pages whose page tables already exist.
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

// A load from a present page: no fault, so mostly the cost of the clock.
Result<Histogram> measure_present_page(const FloorOptions& options);
// The first store to an anonymous page: the kernel's own shortest fault.
Result<Histogram> measure_zero_fault(const FloorOptions& options);

// The thread that installs the page of a local fault.
enum class LocalHandler : uint8_t {
  kBlocked,   // a thread on each CPU, blocked in poll(2) on the same descriptor, as fault workers
  kSpinning,  // one thread on the last CPU, which polls continuously and yields between polls
  kSignal,    // the touching thread itself, in a SIGBUS handler (UFFD_FEATURE_SIGBUS)
};
// A load from a page that a handler in this process installs from a page in its cache: the cost of
// a remote fault without the wire. kSignal replaces the SIGBUS handler of the process during the
// measurement: no other thread may need the handler then.
Result<Histogram> measure_local_userfault(const FloorOptions& options, LocalHandler handler);

}  // namespace farpage::bench
