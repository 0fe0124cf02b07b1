// The read benchmark: READs (or WRITEs) of one leased slab, posted by this program over one
// channel: the cost of the wire without faults.
//
// The slab is filled first. The buffer of each READ is overwritten beforehand, and its content is
// checked afterwards, outside the measured time. After WRITEs the slab is read back and compared.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/histogram.h"
#include "bench/progress.h"
#include "bench/report.h"
#include "coordinator/client.h"
#include "rdma/transport.h"

namespace farpage::bench {

inline constexpr uint32_t kMaxDepth = 1024;
inline constexpr uint64_t kMaxOperationBytes = uint64_t{1} << 20;

// How the content of an operation is generated and checked. Nothing is posted during that time: the
// rate includes it, latencies do not.
enum class ContentCheck : uint8_t {
  kEveryWord,
  kOneWordAPage,  // the first one; for rates. WRITEs are still read back in full.
};

struct ReadOptions {
  rdma::OperationKind operation = rdma::OperationKind::kRead;
  uint64_t bytes = 4096;  // of one operation; a power of two, at least 8
  uint64_t iterations = 10'000;
  Milliseconds duration{0};  // not 0: run for this time instead
  uint32_t depth = 1;        // operations in flight
  uint64_t slab_bytes = coordinator::kDefaultSlabBytes;
  bool pin = false;
  ContentCheck check = ContentCheck::kEveryWord;
  uint64_t seed = 1;
  rdma::ChannelOptions channel;  // template; the benchmark sets the buffer
  ProgressOptions progress;
};

// kInvalid names the flag of `farpage bench read`.
Status validate(const ReadOptions& options);

struct ReadResult {
  rdma::TransportKind transport = rdma::TransportKind::kTcp;
  Histogram latency_ns;  // from just before the post to the completion
  uint64_t completed_bytes = 0;
  Nanoseconds elapsed{0};
};

// kUnsupported when this host or the node has no such transport; kConflict when a self-check fails
// or the content is wrong.
Result<ReadResult> measure_reads(const ReadOptions& options, rdma::Transport& transport,
                                 coordinator::Client& client);

// Without the environment. One row for each result.
Report read_report(const ReadOptions& options, const std::vector<ReadResult>& results);

}  // namespace farpage::bench
