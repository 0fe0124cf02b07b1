// The connect benchmark: the time from the start of a new channel to a memory node until the first
// READ over it completes. A pager waits that long at its start and at each reconnect.
//
// The address of the node is known beforehand, as in a pager. The time includes the handshake (with
// verbs: through the coordinator) and the registration of the buffer, one page. The data of the
// READ is checked outside the measured time.
#pragma once

#include <cstdint>
#include <vector>

#include "base/histogram.h"
#include "bench/progress.h"
#include "bench/report.h"
#include "coordinator/client.h"
#include "rdma/transport.h"

namespace farpage::bench {

struct ConnectOptions {
  uint64_t iterations = 200;
  Milliseconds duration{0};  // not 0: run for this time instead
  uint64_t slab_bytes = coordinator::kDefaultSlabBytes;
  bool pin = false;
  uint64_t seed = 1;
  rdma::ChannelOptions channel;  // template; the benchmark sets buffer and session
  ProgressOptions progress;
};

// kInvalid names the flag of `farpage bench connect`.
Status validate(const ConnectOptions& options);

struct ConnectResult {
  rdma::TransportKind transport = rdma::TransportKind::kTcp;
  Histogram handshake_ns;   // from the start until the channel is connected
  Histogram first_read_ns;  // from the start until its first READ has completed
  uint64_t read_bytes = 0;  // by these READs, verified
};

// kUnsupported when this host or the node has no such transport; kConflict when a self-check fails
// or the content is wrong.
Result<ConnectResult> measure_connects(const ConnectOptions& options, rdma::Transport& transport,
                                       coordinator::Client& client);

// All but the environment. Two rows for each result.
Report connect_report(const ConnectOptions& options, const std::vector<ConnectResult>& results);

}  // namespace farpage::bench
