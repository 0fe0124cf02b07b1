#include "bench/ladder.h"

#include <fmt/format.h>

#include "base/size.h"
#include "bench/fault_bench.h"
#include "bench/read_bench.h"

namespace farpage::bench {
namespace {

// Room for what is touched, below the high-water mark, with space for warming up.
FaultOptions fault_options(const LadderOptions& options) {
  FaultOptions fault;
  fault.iterations = options.iterations;
  fault.bytes = 2 * (options.iterations + 1024) * kPageBytes;
  fault.evict = false;
  fault.pin = options.pin;
  fault.seed = options.seed;
  fault.progress = options.progress;
  return fault;
}

ReadOptions read_options(const LadderOptions& options, const pager::PagerOptions& pager) {
  ReadOptions read;
  read.iterations = options.iterations;
  read.slab_bytes = pager.slab_bytes;
  read.pin = options.pin;
  read.seed = options.seed;
  read.channel = pager.channel;
  read.progress = options.progress;
  return read;
}

Status climb(const LadderOptions& options, const pager::PagerOptions& pager,
             coordinator::Client& client, std::vector<std::unique_ptr<rdma::Transport>>& transports,
             const Histogram& local_fault, Report& report) {
  const rdma::TransportKind kind = transports.front()->kind();
  const std::string name(rdma::to_string(kind));
  const ReadOptions reading = read_options(options, pager);
  Result<ReadResult> read = measure_reads(reading, *transports.front(), client);
  if (!read && read.error().code == ErrorCode::kUnsupported) {
    report.configuration.emplace_back("Left out", name + ": " + read.error().context);
    return {};
  }
  if (!read) return fail_with("READs over " + name, std::move(read).error());
  pager::PagerOptions own = pager;
  own.transports = {kind};
  Result<FaultResult> fault = measure_faults(fault_options(options), own, client, transports);
  if (!fault) return fail_with("faults over " + name, std::move(fault).error());

  report.rows.push_back({"READ, " + name, reading.bytes, read->latency_ns});
  report.rows.push_back({"remote fault, " + name, kPageBytes, fault->away_ns});
  const Overhead overhead = overhead_of(fault->away_ns, read->latency_ns, local_fault);
  report.figures.emplace_back(name + "_floor_us", overhead.floor_us);
  report.figures.emplace_back(name + "_fault_us", overhead.fault_us);
  report.figures.emplace_back(name + "_overhead_us", overhead.above_us());
  report.figures.emplace_back(name + "_overhead_percent", overhead.above_percent());
  report.counts.emplace_back(name + "_pages_fetched", fault->reads + fault->prefetched_pages);
  return {};
}

}  // namespace

Overhead overhead_of(const Histogram& fault, const Histogram& read, const Histogram& local_fault) {
  return {.fault_us = us(fault.percentile_ns(50)),
          .floor_us = us(read.percentile_ns(50)) + us(local_fault.percentile_ns(50))};
}

Status validate(const LadderOptions& options, const pager::PagerOptions& pager) {
  return validate(fault_options(options), pager);
}

uint64_t ladder_bytes(const LadderOptions& options, const pager::PagerOptions& pager) {
  // A slab for the READs, and those of the faults.
  return window_bytes(fault_options(options), pager) + 2 * pager.slab_bytes;
}

Result<Report> measure_ladder(
    const LadderOptions& options, const pager::PagerOptions& pager, coordinator::Client& client,
    std::vector<std::vector<std::unique_ptr<rdma::Transport>>>& transports) {
  FARPAGE_TRY_VOID(validate(options, pager));
  const FloorOptions floor{.pages = options.iterations, .pin = options.pin, .seed = options.seed};
  Report report;
  report.benchmark = "ladder";
  report.configuration = {
      {"Touches", fmt::format("random, read, 1 thread{}, seed {}", options.pin ? " pinned" : "",
                              options.seed)},
      {"Remote faults", fmt::format("no eviction, {} local", format_size(pager.local_bytes))},
      {"Overhead", "remote fault - (READ + local userfaultfd fault), medians"}};
  FARPAGE_TRY(present, measure_present_page(floor));
  report.rows.push_back({"present page (the clock)", kPageBytes, present});
  FARPAGE_TRY(zero, measure_zero_fault(floor));
  report.rows.push_back({"anonymous zero fault", kPageBytes, zero});
  FARPAGE_TRY(local, measure_local_userfault(floor));
  report.rows.push_back({"local userfaultfd fault", kPageBytes, local});
  for (auto& one : transports) FARPAGE_TRY_VOID(climb(options, pager, client, one, local, report));
  if (report.figures.empty())
    return fail(ErrorCode::kUnsupported, "no transport works between this host and the node");
  return report;
}

}  // namespace farpage::bench
