// The raw rate: the best throughput of one channel of a transport, for comparison with a rate of
// pages.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "bench/read_bench.h"
#include "pager/options.h"
#include "pager/stats.h"

namespace farpage::bench {

// The time for each combination of size and depth.
inline constexpr uint64_t kRawBytes[] = {4096, 32768, 262144, 1048576};
inline constexpr uint32_t kRawDepths[] = {1, 4, 16};
inline constexpr Milliseconds kRawDuration{200};

struct RawRateOptions {
  rdma::OperationKind operation = rdma::OperationKind::kRead;
  bool pin = false;
  uint64_t seed = 1;
};

struct RawRate {
  rdma::TransportKind transport = rdma::TransportKind::kTcp;
  Throughput best;  // its name says operation, transport and depth
};

// Writes and checks one word of each page, as the scan benchmark does; WRITEs are read back.
// Borrows a slab of `pager.slab_bytes`. kUnsupported, kConflict: as measure_reads().
Result<RawRate> measure_raw_rate(const RawRateOptions& options, const pager::PagerOptions& pager,
                                 rdma::Transport& transport, coordinator::Client& client);

// The transport over which a pager is connected; of several, the one with the most channels. Null:
// none.
rdma::Transport* connected_transport(const pager::PagerStats& stats,
                                     std::span<const std::unique_ptr<rdma::Transport>> transports);

}  // namespace farpage::bench
