#include "bench/ladder.h"

#include <fmt/format.h>

#include <optional>

#include "base/size.h"
#include "bench/fault_bench.h"
#include "bench/ping_pong.h"
#include "bench/read_bench.h"

namespace farpage::bench {
namespace {

// One way to resolve faults, and its floor.
struct Delivery {
  FaultMode mode;
  std::string row;     // suffix of the name of a row
  std::string figure;  // part of the name of a figure
  Histogram local_fault;
};

// How a page is fetched: our READ, and its floor if there is one.
struct Wire {
  Histogram read;
  std::optional<Histogram> ping_pong;
};

// Room for the touched pages and the warm-up below the high-water mark.
FaultOptions fault_options(const LadderOptions& options, FaultMode mode = FaultMode::kInWorker) {
  FaultOptions fault;
  fault.faults = mode;
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

Status add_remote_fault(const LadderOptions& options, const pager::PagerOptions& pager,
                        coordinator::Client& client,
                        std::vector<std::unique_ptr<rdma::Transport>>& transports, const Wire& wire,
                        const Delivery& delivery, Report& report) {
  const rdma::TransportKind kind = transports.front()->kind();
  const std::string name(rdma::to_string(kind));
  pager::PagerOptions own = pager;
  own.transports = {kind};
  Result<FaultResult> fault =
      measure_faults(fault_options(options, delivery.mode), own, client, transports);
  if (!fault) return fail_with("faults over " + name + delivery.row, std::move(fault).error());

  report.rows.push_back({"remote fault, " + name + delivery.row, kPageBytes, fault->away_ns});
  const Overhead overhead = overhead_of(fault->away_ns, wire.read, delivery.local_fault);
  const std::string figure = name + delivery.figure;
  report.figures.emplace_back(figure + "_floor_us", overhead.floor_us);
  report.figures.emplace_back(figure + "_fault_us", overhead.fault_us);
  report.figures.emplace_back(figure + "_overhead_us", overhead.above_us());
  report.figures.emplace_back(figure + "_overhead_percent", overhead.above_percent());
  if (wire.ping_pong) {
    const Overhead above = overhead_of(fault->away_ns, *wire.ping_pong, delivery.local_fault);
    report.figures.emplace_back(figure + "_above_ping_pong_percent", above.above_percent());
  }
  report.counts.emplace_back(figure + "_pages_fetched", fault->reads + fault->prefetched_pages);
  return {};
}

// Returns the wait mode with the lower median.
Result<Histogram> add_ping_pongs(const LadderOptions& options, Report& report) {
  PingPongOptions ping_pong{.iterations = options.iterations, .pin = options.pin};
  FARPAGE_TRY(blocking, measure_tcp_ping_pong(ping_pong));
  report.rows.push_back({"TCP ping-pong, blocking", kPageBytes, blocking});
  ping_pong.wait = PingPongWait::kSpinning;
  FARPAGE_TRY(spinning, measure_tcp_ping_pong(ping_pong));
  report.rows.push_back({"TCP ping-pong, spinning", kPageBytes, spinning});
  return blocking.percentile_ns(50) < spinning.percentile_ns(50) ? blocking : spinning;
}

Status climb(const LadderOptions& options, const pager::PagerOptions& pager,
             coordinator::Client& client, std::vector<std::unique_ptr<rdma::Transport>>& transports,
             const std::vector<Delivery>& deliveries, Report& report) {
  const rdma::TransportKind kind = transports.front()->kind();
  const std::string name(rdma::to_string(kind));
  const ReadOptions reading = read_options(options, pager);
  Result<ReadResult> read = measure_reads(reading, *transports.front(), client);
  if (!read && read.error().code == ErrorCode::kUnsupported) {
    report.configuration.emplace_back("Left out", name + ": " + read.error().context);
    return {};
  }
  if (!read) return fail_with("READs over " + name, std::move(read).error());
  Wire wire{.read = read->latency_ns, .ping_pong = std::nullopt};
  if (kind == rdma::TransportKind::kTcp && options.loopback) {
    FARPAGE_TRY(ping_pong, add_ping_pongs(options, report));
    wire.ping_pong = ping_pong;
  }
  report.rows.push_back({"READ, " + name, reading.bytes, read->latency_ns});
  for (const Delivery& delivery : deliveries)
    FARPAGE_TRY_VOID(add_remote_fault(options, pager, client, transports, wire, delivery, report));
  return {};
}

Result<std::vector<Delivery>> add_floors(const FloorOptions& options, Report& report) {
  const auto add = [&report](std::string name, const Histogram& histogram) {
    report.rows.push_back({std::move(name), kPageBytes, histogram});
  };
  FARPAGE_TRY(present, measure_present_page(options));
  add("present page (the clock)", present);
  FARPAGE_TRY(zero, measure_zero_fault(options));
  add("anonymous zero fault", zero);
  FARPAGE_TRY(blocked, measure_local_userfault(options, LocalHandler::kBlocked));
  add("local userfaultfd fault", blocked);
  FARPAGE_TRY(spinning, measure_local_userfault(options, LocalHandler::kSpinning));
  add("local userfaultfd fault, spinning", spinning);
  FARPAGE_TRY(signalled, measure_local_userfault(options, LocalHandler::kSignal));
  add("local userfaultfd fault, SIGBUS", signalled);
  return std::vector<Delivery>{{FaultMode::kInWorker, "", "", blocked},
                               {FaultMode::kInHandler, ", SIGBUS", "_sigbus", signalled}};
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
  // The slabs of the READs and of the faults.
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
      {"Resolved by",
       "a thread blocked in poll; spinning: a thread that polls continuously; SIGBUS: the touching "
       "thread in its signal handler"},
      {"Overhead", "remote fault - (READ + local userfaultfd fault resolved alike), medians"}};
  if (options.loopback)
    report.configuration.emplace_back(
        "TCP ping-pong",
        "16 B there, 4 KiB back, plain sockets: the faster one in place of the READ gives "
        "above_ping_pong");
  FARPAGE_TRY(deliveries, add_floors(floor, report));
  for (auto& one : transports)
    FARPAGE_TRY_VOID(climb(options, pager, client, one, deliveries, report));
  if (report.figures.empty())
    return fail(ErrorCode::kUnsupported, "no transport works between this host and the node");
  return report;
}

}  // namespace farpage::bench
