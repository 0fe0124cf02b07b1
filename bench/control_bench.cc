#include "bench/control_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <charconv>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "bench/fault_bench.h"
#include "bench/pace.h"
#include "bench/self_check.h"
#include "bench/touch_order.h"

namespace farpage::bench {
namespace {

constexpr std::string_view kCounter = "farpage_coordinator_requests_total{";
constexpr Milliseconds kBetweenChecks{10};

tl::unexpected<Error> wrong_answer(const std::string& what) {
  return fail(ErrorCode::kConflict, "the coordinator's answer was wrong: " + what);
}

// Threads: one sends the requests; results are read after it has ended, requests() at any time.
class Caller {
 public:
  Caller(coordinator::Client& client, const ControlOptions& options, uint32_t index)
      : client_(client),
        slab_bytes_(options.slab_bytes),
        name_(fmt::format("bench-control-{}", index)) {}

  Status call_all(Pace pace) {
    uint64_t step = 0;
    for (; pace.next(SteadyClock::read()); ++step) {
      const auto kind = static_cast<RequestKind>(step % kRequestKinds);
      const Instant start = SteadyClock::read();
      FARPAGE_TRY_VOID(call(kind));
      latency_ns_[step % kRequestKinds].record(
          static_cast<uint64_t>((SteadyClock::read() - start).count()));
    }
    return region_ ? client_.delete_region(region_->id) : Status();
  }

  const std::array<Histogram, kRequestKinds>& latency_ns() const { return latency_ns_; }
  uint64_t requests() const {
    uint64_t requests = 0;
    for (const Histogram& histogram : latency_ns_) requests += histogram.count();
    return requests;
  }

 private:
  Status call(RequestKind kind) {
    switch (kind) {
      case RequestKind::kCreateRegion:
        return create();
      case RequestKind::kHeartbeat:
        FARPAGE_TRY_VOID(client_.heartbeat_region(region_->id, {}));
        return {};
      case RequestKind::kReadRegion:
        return read();
      case RequestKind::kListNodes:
        return list();
      case RequestKind::kDelete:
        FARPAGE_TRY_VOID(client_.delete_region(region_->id));
        region_.reset();
        return {};
    }
    return {};
  }

  Status create() {
    FARPAGE_TRY(region, client_.create_region(
                            {.name = name_, .bytes = 0, .replicas = 1, .slab_bytes = slab_bytes_}));
    if (region.name != name_ || region.slab_bytes != slab_bytes_)
      return wrong_answer("another region was made");
    region_ = std::move(region);
    return {};
  }
  Status read() {
    FARPAGE_TRY(region, client_.region(region_->id));
    if (region.id != region_->id || region.name != name_)
      return wrong_answer("it is of another region");
    return {};
  }
  Status list() {
    FARPAGE_TRY(nodes, client_.nodes());
    return nodes.empty() ? Status(wrong_answer("there is no node")) : Status();
  }

  coordinator::Client& client_;
  const uint64_t slab_bytes_;
  const std::string name_;
  std::optional<coordinator::RegionInfo> region_;  // that exists now
  std::array<Histogram, kRequestKinds> latency_ns_;
};

using Callers = std::vector<std::unique_ptr<Caller>>;

uint64_t requests_of(const Callers& callers) {
  uint64_t requests = 0;
  for (const auto& caller : callers) requests += caller->requests();
  return requests;
}

Result<Nanoseconds> call_all(const Callers& callers, const ControlOptions& options) {
  std::barrier together(static_cast<ptrdiff_t>(callers.size() + 1));
  std::vector<Status> ends(callers.size());
  std::vector<std::jthread> threads;
  for (uint32_t i = 0; i < callers.size(); ++i)
    threads.emplace_back([&, i] {
      together.arrive_and_wait();
      const PaceOptions pace{.touches = share_of(options.iterations, i, options.threads).pages,
                             .duration = options.duration};
      ends[i] = callers[i]->call_all(Pace(pace, SteadyClock::read()));
    });
  const Progress progress(options.progress, "control",
                          {.operations = options.iterations, .time = options.duration},
                          [&callers] { return requests_of(callers); });
  const Instant start = SteadyClock::read();
  together.arrive_and_wait();
  for (std::jthread& thread : threads) thread.join();
  const Nanoseconds elapsed = SteadyClock::read() - start;
  for (Status& end : ends) FARPAGE_TRY_VOID(std::move(end));
  return elapsed;
}

Result<uint64_t> counted_requests(coordinator::Client& client) {
  FARPAGE_TRY(metrics, client.get("/metrics"));
  return requests_in(metrics);
}

// The coordinator counts a request just after its answer, so the check is repeated.
Status settle(ControlResult& result, uint64_t before, coordinator::Client& client) {
  const auto check = [&]() -> Status {
    FARPAGE_TRY(now, counted_requests(client));
    result.counted_requests = now - std::min(before, now);
    return check_request_claim(
        {.answered_requests = result.requests, .counted_requests = result.counted_requests});
  };
  return until_settled(check, kBetweenChecks);
}

}  // namespace

std::string_view to_string(RequestKind kind) {
  switch (kind) {
    case RequestKind::kCreateRegion:
      return "create region";
    case RequestKind::kHeartbeat:
      return "heartbeat";
    case RequestKind::kReadRegion:
      return "read region";
    case RequestKind::kListNodes:
      return "list nodes";
    case RequestKind::kDelete:
      return "delete region";
  }
  return "unknown";
}

uint64_t requests_in(std::string_view metrics) {
  uint64_t requests = 0;
  while (!metrics.empty()) {
    const std::string_view line = metrics.substr(0, metrics.find('\n'));
    metrics.remove_prefix(std::min(metrics.size(), line.size() + 1));
    if (!line.starts_with(kCounter)) continue;
    const std::string_view value = line.substr(line.rfind(' ') + 1);
    uint64_t count = 0;
    (void)std::from_chars(value.data(), value.data() + value.size(), count);
    requests += count;
  }
  return requests;
}

Status validate(const ControlOptions& options) {
  if (options.threads < 1 || options.threads > kMaxThreads)
    return fail(ErrorCode::kInvalid, fmt::format("--threads: 1 to {}", kMaxThreads));
  return validate_length(options.duration, options.iterations, options.threads);
}

Result<ControlResult> measure_control(const ControlOptions& options, coordinator::Client& client) {
  FARPAGE_TRY_VOID(validate(options));
  Callers callers;
  for (uint32_t i = 0; i < options.threads; ++i)
    callers.push_back(std::make_unique<Caller>(client, options, i));
  FARPAGE_TRY(before, counted_requests(client));
  FARPAGE_TRY(elapsed, call_all(callers, options));
  ControlResult result;
  result.elapsed = elapsed;
  for (const auto& caller : callers)
    for (size_t kind = 0; kind < kRequestKinds; ++kind)
      result.latency_ns[kind].merge(caller->latency_ns()[kind]);
  result.requests = requests_of(callers);
  FARPAGE_TRY_VOID(settle(result, before, client));
  return result;
}

Report control_report(const ControlOptions& options, const ControlResult& result) {
  Report report;
  report.benchmark = "control";
  report.configuration = {
      {"Requests", fmt::format("{} thread(s), each in turn: create, heartbeat, read, list, delete",
                               options.threads)},
      {"Connections", "one for each request, as nodes and pagers make them"},
      {"Content", "each answer compared with what was asked for"}};
  for (size_t kind = 0; kind < kRequestKinds; ++kind)
    report.rows.push_back(
        {std::string(to_string(static_cast<RequestKind>(kind))), 0, result.latency_ns[kind]});
  report.figures = {{"requests_per_s", static_cast<double>(result.requests) * 1e9 /
                                           static_cast<double>(result.elapsed.count())}};
  report.counts = {{"requests", result.requests},
                   {"counted_by_coordinator", result.counted_requests}};
  return report;
}

}  // namespace farpage::bench
