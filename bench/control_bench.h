// The control benchmark: rate and latency of requests to a coordinator, by kind of request.
//
// Each thread repeats a cycle: it creates a region without slabs, sends a heartbeat for it, reads
// it, lists the nodes and deletes the region. Answers are checked against the requests, and the
// number of requests against the coordinator's own count. Each request uses a new connection, as in
// nodes and pagers (http/caller.h), and the time includes the connect.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/histogram.h"
#include "bench/progress.h"
#include "bench/report.h"
#include "coordinator/client.h"

namespace farpage::bench {

enum class RequestKind : uint8_t { kCreateRegion, kHeartbeat, kReadRegion, kListNodes, kDelete };
inline constexpr size_t kRequestKinds = 5;
std::string_view to_string(RequestKind kind);

struct ControlOptions {
  uint64_t iterations = 10'000;  // requests of all threads together
  Milliseconds duration{0};      // not 0: run for this time instead
  uint32_t threads = 4;
  uint64_t slab_bytes = coordinator::kDefaultSlabBytes;  // as on the nodes
  ProgressOptions progress;
};

// kInvalid names the flag of `farpage bench control`.
Status validate(const ControlOptions& options);

struct ControlResult {
  std::array<Histogram, kRequestKinds> latency_ns;  // by RequestKind
  uint64_t requests = 0;
  uint64_t counted_requests = 0;  // the coordinator's count in that time, for all clients
  Nanoseconds elapsed{0};
};

// The requests that a coordinator has counted so far, all routes, from the text of its /metrics.
uint64_t requests_in(std::string_view metrics);

// kConflict when a self-check fails (bench/self_check.h) or an answer is wrong.
Result<ControlResult> measure_control(const ControlOptions& options, coordinator::Client& client);

// Without the environment. One row for each kind of request.
Report control_report(const ControlOptions& options, const ControlResult& result);

}  // namespace farpage::bench
