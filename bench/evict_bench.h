// The evict benchmark: the rate of evicting dirty pages. A page counts when every replica has
// acknowledged its WRITE and the page is dropped.
//
// Each round dirties as many pages as fit, and checks the content of the previous round. Then the
// clock starts, a hint evicts all of the pages (as Region::evict() and MADV_PAGEOUT do), and the
// clock stops when the last page is remote. The raw
// rate of WRITEs over the same transport (raw_rate.h) is measured for comparison.
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

struct EvictOptions {
  uint64_t bytes = 0;        // dirtied in each round; 0: as many as fit
  uint64_t rounds = 10;      // measured ones
  Milliseconds duration{0};  // not 0: rounds for this time instead
  bool pin = false;          // the thread that posts the raw WRITEs
  uint64_t seed = 1;
  ProgressOptions progress;
};

// Below the low-water mark: no page is evicted before the hint.
uint64_t dirty_pages(const EvictOptions& options, const pager::PagerOptions& pager);

// kInvalid names the flag of `farpage bench evict`.
Status validate(const EvictOptions& options, const pager::PagerOptions& pager);

// The memory to borrow for it, including a slab for the raw WRITEs.
uint64_t evict_bytes(const EvictOptions& options, const pager::PagerOptions& pager);

struct EvictResult {
  Histogram round_ns;      // from the hint until the last page was evicted
  Histogram batch_ns;      // of the pager's batches: picked -> dropped
  uint64_t pages = 0;      // evicted in measured rounds
  Nanoseconds elapsed{0};  // of these rounds, without dirtying
  // What the pager did in all rounds.
  uint64_t dirtied_pages = 0, evicted_written = 0, evicted_clean = 0, cancelled = 0;
  uint64_t writes = 0, write_bytes = 0, write_failures = 0;
  uint64_t checked_pages = 0;
  std::string transports;  // that connected
  RawRate raw;
};

// kConflict when a self-check fails (bench/self_check.h), or a page has wrong content.
Result<EvictResult> measure_evict(const EvictOptions& options, const pager::PagerOptions& pager,
                                  coordinator::Client& client,
                                  std::vector<std::unique_ptr<rdma::Transport>>& transports);

// Without the environment.
Report evict_report(const EvictOptions& options, const pager::PagerOptions& pager,
                    const EvictResult& result);

}  // namespace farpage::bench
