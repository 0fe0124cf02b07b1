// The register benchmark: what a lease costs. A slab is borrowed until a page of it has been
// written, and given back.
//
// The node registers a slab anew for each lease, on every transport that it offers, and revokes the
// registration when it comes back: larger slabs cost more where a network card pins their memory.
#pragma once

#include <cstdint>
#include <vector>

#include "base/histogram.h"
#include "bench/progress.h"
#include "bench/report.h"
#include "coordinator/client.h"
#include "rdma/transport.h"

namespace farpage::bench {

struct RegisterOptions {
  uint64_t iterations = 50;
  Milliseconds duration{0};                              // not 0: for so long instead
  uint64_t slab_bytes = coordinator::kDefaultSlabBytes;  // that of the nodes
  uint64_t seed = 1;
  rdma::ChannelOptions channel;  // the template; buffer and session are the benchmark's
  ProgressOptions progress;
};

// What a node has to lend for it: a slab that is given back is not free at once.
inline constexpr uint64_t kRegisterSlabs = 8;

// kInvalid names the flag of `farpage bench register`.
Status validate(const RegisterOptions& options);

struct RegisterResult {
  uint64_t slab_bytes = 0;
  rdma::TransportKind transport = rdma::TransportKind::kTcp;  // of the WRITEs
  Histogram lease_ns;                                         // until the coordinator has answered
  Histogram usable_ns;     // until the first WRITE to the slab has completed: the lease included
  Histogram give_back_ns;  // until the coordinator has answered
  uint64_t checked_bytes = 0;  // read back from the slabs, and right
};

// Over a channel that was there before. kUnsupported when this host or the node has no such
// transport; kConflict when a self-check fails or the content was wrong.
Result<RegisterResult> measure_leases(const RegisterOptions& options, rdma::Transport& transport,
                                      coordinator::Client& client);

// All but the environment. Three rows for each result.
Report register_report(const std::vector<RegisterResult>& results);

}  // namespace farpage::bench
