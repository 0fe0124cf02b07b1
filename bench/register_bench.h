// The register benchmark: the cost of a lease. A slab is leased, a page of it is written, and the
// slab is returned.
//
// The node registers a slab for each lease, on every transport that it offers, and revokes the
// registration when the slab is returned. Larger slabs cost more if a network card pins their
// memory.
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
  Milliseconds duration{0};                              // not 0: run for this time instead
  uint64_t slab_bytes = coordinator::kDefaultSlabBytes;  // as on the nodes
  uint64_t seed = 1;
  rdma::ChannelOptions channel;  // template; the benchmark sets buffer and session
  ProgressOptions progress;
};

// Slabs that a node must lend for it: a returned slab is not free at once.
inline constexpr uint64_t kRegisterSlabs = 8;

// kInvalid names the flag of `farpage bench register`.
Status validate(const RegisterOptions& options);

struct RegisterResult {
  uint64_t slab_bytes = 0;
  rdma::TransportKind transport = rdma::TransportKind::kTcp;  // of the WRITEs
  Histogram lease_ns;                                         // until the coordinator has answered
  Histogram usable_ns;     // from the same start until the first WRITE to the slab has completed
  Histogram give_back_ns;  // until the coordinator has answered
  uint64_t checked_bytes = 0;  // read back from the slabs and verified
};

// Over a channel that is already connected. kUnsupported when this host or the node has no such
// transport; kConflict when a self-check fails or the content is wrong.
Result<RegisterResult> measure_leases(const RegisterOptions& options, rdma::Transport& transport,
                                      coordinator::Client& client);

// Without the environment. Three rows for each result.
Report register_report(const std::vector<RegisterResult>& results);

}  // namespace farpage::bench
