// The ladder: steps from a touch without a fault to a remote fault, all in one run, so that each
// step can be compared with the steps below it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/floors.h"
#include "bench/progress.h"
#include "bench/report.h"
#include "coordinator/client.h"
#include "pager/options.h"
#include "rdma/transport.h"

namespace farpage::bench {

struct LadderOptions {
  uint64_t iterations = 10'000;
  bool pin = false;  // the touching thread
  // The nodes are on this host: measurements over TCP use the loopback device.
  bool loopback = true;
  uint64_t seed = 1;
  ProgressOptions progress;  // of the steps that use a memory node
};

// The cost of a remote fault over one transport above its parts: a READ of a page, and a local
// fault that is resolved in the same way (bench/floors.h). All medians, in microseconds.
struct Overhead {
  double fault_us = 0;
  double floor_us = 0;  // READ + local fault
  double above_us() const { return fault_us - floor_us; }
  double above_percent() const { return floor_us > 0 ? (fault_us / floor_us - 1) * 100 : 0; }
};
Overhead overhead_of(const Histogram& fault, const Histogram& read, const Histogram& local_fault);

// kInvalid names the flag of `farpage bench ladder`.
Status validate(const LadderOptions& options, const pager::PagerOptions& pager);

// The memory to borrow for it.
uint64_t ladder_bytes(const LadderOptions& options, const pager::PagerOptions& pager);

// `transports`: one list for each kind to measure, with that transport alone. A kind that the node
// or this host lacks is omitted and named in the report. Without the environment.
Result<Report> measure_ladder(
    const LadderOptions& options, const pager::PagerOptions& pager, coordinator::Client& client,
    std::vector<std::vector<std::unique_ptr<rdma::Transport>>>& transports);

}  // namespace farpage::bench
