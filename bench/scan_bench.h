// The scan benchmark: the rate of a stream over remote pages.
//
// Every page is filled and evicted. Then one or more threads stream once over all of them, each
// over its share in order, and check a word of each page. The raw rate of READs over the same
// transport (raw_rate.h) is measured for comparison.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/progress.h"
#include "bench/raw_rate.h"
#include "bench/report.h"
#include "coordinator/client.h"
#include "pager/options.h"
#include "rdma/transport.h"

namespace farpage::bench {

struct ScanOptions {
  uint64_t bytes = uint64_t{256} << 20;  // of all shares
  uint32_t threads = 1;                  // each streams over its own share
  bool pin = false;                      // thread i to CPU i
  uint64_t seed = 1;
  ProgressOptions progress;
};

// kInvalid names the flag of `farpage bench scan`.
Status validate(const ScanOptions& options);

// The memory to borrow for it, including a slab for the raw READs.
uint64_t scan_bytes(const ScanOptions& options, const pager::PagerOptions& pager);

struct ScanResult {
  Histogram touch_ns;  // of each page: from before the load of its word to after it
  uint64_t pages = 0;  // streamed, with correct content
  Nanoseconds elapsed{0};
  // What the pager did meanwhile.
  uint64_t reads = 0, read_bytes = 0, prefetched_pages = 0, rescued_faults = 0, retries = 0;
  uint64_t evicted_clean = 0;
  std::string transports;  // that connected
  RawRate raw;
};

// kConflict when a self-check fails (bench/self_check.h), or a page has wrong content.
Result<ScanResult> measure_scan(const ScanOptions& options, const pager::PagerOptions& pager,
                                coordinator::Client& client,
                                std::vector<std::unique_ptr<rdma::Transport>>& transports);

// Without the environment.
Report scan_report(const ScanOptions& options, const pager::PagerOptions& pager,
                   const ScanResult& result);

}  // namespace farpage::bench
