// The fault benchmark: threads touch far memory, and each touch is timed from before the
// instruction to after it.
//
// Two kinds of run:
//   steady state  the window is larger than the local budget, and the evictor runs all the time;
//   no eviction   every page is evicted first, and then touched once, with room for all of them.
// In a closed loop, a thread starts a touch when its previous touch ends. In an open loop
// (`rate_per_s`), each touch has an intended start, where its latency starts (bench/pace.h).
//
// Just before the touch, outside the measured time, mincore(2) tells whether the page is present;
// touches of present pages are counted separately. The content of every page is checked after its
// touch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/clock.h"
#include "base/histogram.h"
#include "bench/far_window.h"
#include "bench/pace.h"
#include "bench/progress.h"
#include "bench/report.h"
#include "bench/touch_order.h"
#include "coordinator/client.h"
#include "pager/access_trace.h"
#include "pager/options.h"
#include "pager/stats.h"
#include "rdma/transport.h"

namespace farpage::bench {

enum class Access : uint8_t {
  kRead,
  kWrite,
  kMixed
};  // kMixed: half of the touches write, at random
std::string_view to_string(Access access);
std::optional<Access> access_from(std::string_view name);

inline constexpr uint32_t kMaxThreads = 64;
inline constexpr uint64_t kMaxBytes = uint64_t{1} << 40;

struct FaultOptions {
  uint64_t bytes = uint64_t{256} << 20;  // of far memory to touch
  uint64_t iterations = 10'000;          // measured touches, of all threads together
  Milliseconds duration{0};              // not 0: touches for this time instead
  uint64_t rate_per_s = 0;               // touches of each thread; 0: a closed loop
  std::chrono::microseconds compute{0};  // of a closed loop: computing before each touch
  Pattern pattern = Pattern::kRandom;
  Access access = Access::kRead;
  FaultMode faults = FaultMode::kInWorker;
  uint32_t threads = 1;  // each touches its own share of the memory
  bool evict = true;     // false: the run without eviction
  bool pin = false;      // thread i to CPU i
  bool record = false;   // record the trace: only with one thread and eviction
  uint64_t seed = 1;
  ProgressOptions progress;
};

// kInvalid names the flag of `farpage bench fault`.
Status validate(const FaultOptions& options, const pager::PagerOptions& pager);

// The memory to borrow for such a run.
uint64_t window_bytes(const FaultOptions& options, const pager::PagerOptions& pager);

struct FaultResult {
  Histogram away_ns;     // touches of remote pages; in an open loop from the intended start
  Histogram present_ns;  // touches of the others; the same
  Histogram touch_ns;    // as away_ns, but always from the instruction itself
  uint64_t touches = 0;
  // Of an open loop: touches that started late, and those that never started (bench/pace.h).
  uint64_t late_touches = 0, missed_touches = 0;
  Nanoseconds elapsed{0};  // all touches with their checks
  // What the pager did meanwhile.
  uint64_t reads = 0, read_bytes = 0, prefetched_pages = 0, retries = 0;
  uint64_t faults_write = 0, faults_rescued = 0, faults_waited_room = 0;
  uint64_t evicted_written = 0, evicted_unchanged = 0, evicted_clean = 0, write_bytes = 0;
  Histogram queue_ns, wire_ns, install_ns;  // of demand READs, see pager/stats.h
  std::string transports;                   // that connected
  FaultMode faults = FaultMode::kInWorker;  // of the window
  std::optional<pager::AccessTrace>
      trace;  // when recorded: filling and warming up, and the touches
};

// kConflict when a self-check fails (bench/self_check.h), or a page has wrong content.
Result<FaultResult> measure_faults(const FaultOptions& options, const pager::PagerOptions& pager,
                                   coordinator::Client& client,
                                   std::vector<std::unique_ptr<rdma::Transport>>& transports);

// Without the environment.
Report fault_report(const FaultOptions& options, const pager::PagerOptions& pager,
                    const FaultResult& result);

}  // namespace farpage::bench
