// The load on a coordinator of a large cluster: simulated nodes and pagers on real loopback sockets
// send heartbeats each second and lease and release slabs, while watchers wait for events; then the
// coordinator is killed and started again with that state.
//
// The run checks itself: every answer must be a success, nothing is leased twice, and at the end
// the coordinator, the nodes and the pagers agree on the number of leases, and the coordinator has
// counted as many requests as it has answered. Requests are sent when they are due, also while
// others are late, and their time counts from then.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/histogram.h"
#include "base/result.h"
#include "bench/progress.h"
#include "bench/report.h"

namespace farpage::bench {

enum class LoadKind : uint8_t {
  kNodeHeartbeat,
  kRegionHeartbeat,
  kLease,
  kRelease,
  kCreateRegion,
  kDeleteRegion,
  kTotals,   // GET /v1/cluster, each second
  kEvent,    // from the latest request that makes one to the answer of a watcher
  kJoin,     // before the measured time, as all that follow
  kMetrics,  // the text of /metrics
};
inline constexpr size_t kLoadKinds = 10;
std::string_view to_string(LoadKind kind);

struct ControlLoadOptions {
  uint32_t nodes = 1000;
  uint32_t regions = 2000;
  uint32_t leases = 100'000;
  uint32_t watchers = 1000;
  uint32_t changes_per_s = 50;  // leases, releases; of 25, one creates and one deletes a region
  Milliseconds duration{10'000};
  uint64_t slab_bytes = uint64_t{2} << 20;
  uint64_t seed = 1;
  ProgressOptions progress;
};

// kInvalid names the flag of `farpage bench control`.
Status validate(const ControlLoadOptions& options);

// The coordinator that is measured: a process with a store that outlives it.
class MeasuredCoordinator {
 public:
  virtual ~MeasuredCoordinator() = default;
  // Returns its port on 127.0.0.1 when it is ready; the same port each time.
  virtual Result<uint16_t> start() = 0;
  virtual void kill() = 0;  // SIGKILL; returns when it has ended
  virtual int pid() const = 0;
};

// Of the coordinator's process, from /proc.
struct ProcessFacts {
  uint64_t resident_bytes = 0;
  uint64_t peak_resident_bytes = 0;
  uint32_t threads = 0;
  Nanoseconds cpu_time{0};
};
Result<ProcessFacts> facts_of_process(int pid);

struct ControlLoadResult {
  std::array<Histogram, kLoadKinds> latency_ns;
  Nanoseconds elapsed{0};
  uint64_t requests = 0;          // answered in the measured time
  uint64_t counted_requests = 0;  // by the coordinator, in the whole run: as many were answered
  uint64_t events = 0;            // that watchers were told, summed over them
  uint64_t leases = 0;            // at the end
  uint64_t watchers_waiting = 0;  // the coordinator's count
  Nanoseconds latest_tick{0};     // how late this generator has sent requests, at most
  Nanoseconds setup{0};           // joins, regions and leases
  Nanoseconds restart{0};         // from the start of the process to an answer with all leases
  ProcessFacts before;            // the measured time
  ProcessFacts after;
  ProcessFacts restarted;
};

// kConflict when a self-check fails.
Result<ControlLoadResult> measure_control_load(const ControlLoadOptions& options,
                                               MeasuredCoordinator& coordinator);

// Without the environment.
Report control_load_report(const ControlLoadOptions& options, const ControlLoadResult& result);

}  // namespace farpage::bench
