#include "bench/raw_rate.h"

#include <fmt/format.h>

#include "base/size.h"

namespace farpage::bench {
namespace {

ReadOptions read_options(const RawRateOptions& options, const pager::PagerOptions& pager,
                         uint64_t bytes, uint32_t depth) {
  ReadOptions read;
  read.operation = options.operation;
  read.bytes = bytes;
  read.depth = depth;
  read.duration = kRawDuration;
  read.slab_bytes = pager.slab_bytes;
  read.pin = options.pin;
  read.check = ContentCheck::kOneWordAPage;
  read.seed = options.seed;
  read.channel = pager.channel;
  return read;
}

Throughput throughput_of(const ReadOptions& options, const ReadResult& result) {
  const bool read = options.operation == rdma::OperationKind::kRead;
  return {.name = fmt::format("raw {}, {}, {} in flight", read ? "READ" : "WRITE",
                              rdma::to_string(result.transport), options.depth),
          .bytes = options.bytes,
          .operations = result.latency_ns.count(),
          .elapsed = result.elapsed};
}

}  // namespace

Result<RawRate> measure_raw_rate(const RawRateOptions& options, const pager::PagerOptions& pager,
                                 rdma::Transport& transport, coordinator::Client& client) {
  RawRate rate{.transport = transport.kind(), .best = {}};
  for (const uint64_t bytes : kRawBytes) {
    for (const uint32_t depth : kRawDepths) {
      const ReadOptions read = read_options(options, pager, bytes, depth);
      if (depth > read.channel.operations_in_flight) continue;
      const Result<ReadResult> result = measure_reads(read, transport, client);
      // The operation is larger than this channel supports: skip this size.
      if (!result && result.error().code == ErrorCode::kInvalid) continue;
      if (!result) return tl::unexpected(result.error());
      const Throughput throughput = throughput_of(read, *result);
      if (throughput.mb_per_second() > rate.best.mb_per_second()) rate.best = throughput;
    }
  }
  if (rate.best.operations == 0)
    return fail(ErrorCode::kConflict, "no numbers for this run: no raw operation completed");
  return rate;
}

rdma::Transport* connected_transport(const pager::PagerStats& stats,
                                     std::span<const std::unique_ptr<rdma::Transport>> transports) {
  rdma::Transport* connected = nullptr;
  uint64_t most = 0;
  for (const auto& transport : transports) {
    const uint64_t channels = stats.connected_by_kind[static_cast<size_t>(transport->kind())];
    if (channels <= most) continue;
    most = channels;
    connected = transport.get();
  }
  return connected;
}

}  // namespace farpage::bench
