// The evict benchmark: how fast dirty pages leave, through to acknowledged by every replica and
// dropped.
//
// Each round dirties as many pages as there is room for, reading back and checking what the round
// before left; then the clock starts, all of them are evicted by hint (what Region::evict() and
// MADV_PAGEOUT do), and it stops when the last one is on its memory nodes alone. Beside it, over
// the same transport: the raw rate of WRITEs (raw_rate.h).
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
  uint64_t bytes = 0;        // dirtied in each round; 0: all that there is room for
  uint64_t rounds = 10;      // that are measured
  Milliseconds duration{0};  // not 0: rounds for so long instead
  bool pin = false;          // the thread that posts the raw WRITEs
  uint64_t seed = 1;
  ProgressOptions progress;
};

// Below the low-water mark: nothing leaves before it is told to.
uint64_t dirty_pages(const EvictOptions& options, const pager::PagerOptions& pager);

// kInvalid names the flag of `farpage bench evict`.
Status validate(const EvictOptions& options, const pager::PagerOptions& pager);

// What has to be borrowed for it: the memory, and a slab for the raw WRITEs.
uint64_t evict_bytes(const EvictOptions& options, const pager::PagerOptions& pager);

struct EvictResult {
  Histogram round_ns;      // from the hint until the last page was gone
  Histogram batch_ns;      // of the pager's batches: picked -> dropped
  uint64_t pages = 0;      // that left in measured rounds
  Nanoseconds elapsed{0};  // of these rounds, without the dirtying
  // What the pager did in all rounds.
  uint64_t dirtied_pages = 0, evicted_written = 0, evicted_clean = 0, cancelled = 0;
  uint64_t writes = 0, write_bytes = 0, write_failures = 0;
  uint64_t checked_pages = 0;
  std::string transports;  // that connected
  RawRate raw;
};

// kConflict when a self-check fails (bench/self_check.h), or a page held the wrong content.
Result<EvictResult> measure_evict(const EvictOptions& options, const pager::PagerOptions& pager,
                                  coordinator::Client& client,
                                  std::vector<std::unique_ptr<rdma::Transport>>& transports);

// All but the environment.
Report evict_report(const EvictOptions& options, const pager::PagerOptions& pager,
                    const EvictResult& result);

}  // namespace farpage::bench
