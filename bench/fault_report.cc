// The text report of the fault benchmark: rows, stages, figures.
#include <fmt/format.h>

#include "base/size.h"
#include "bench/fault_bench.h"

namespace farpage::bench {
namespace {

Stage stage_of(std::string name, const Histogram& histogram) {
  return {std::move(name), histogram.mean_ns() / 1000.0, us(histogram.percentile_ns(50)),
          us(histogram.percentile_ns(99))};
}

bool in_handler(const FaultResult& result) {
  return result.faults == FaultMode::kInHandler;
}

// What the pager cannot see: from the touch to the worker's read of the event (or the handler's
// start), and from the install to the touching thread's next instruction. It includes the install
// call: a worker's install wakes the thread and, if both share a CPU, returns only after the thread
// has run.
Stage rest_of(const FaultResult& result, const Stage& whole, const Stage& queue,
              const Stage& wire) {
  const char* name =
      in_handler(result) ? "signal, install, return (rest)" : "deliver, install, wake (rest)";
  return {name, whole.mean_us - queue.mean_us - wire.mean_us};
}

double per_second(uint64_t count, Nanoseconds elapsed) {
  return elapsed.count() == 0
             ? 0.0
             : static_cast<double>(count) * 1e9 / static_cast<double>(elapsed.count());
}

std::string loop_of(const FaultOptions& options) {
  if (options.rate_per_s == 0 && options.compute.count() > 0)
    return fmt::format("closed: {} us of computing before each touch", options.compute.count());
  if (options.rate_per_s == 0) return "closed: a touch starts when the previous one ends";
  return fmt::format(
      "open: {} touches/s of each thread; latency from the intended start, late or not",
      options.rate_per_s);
}

}  // namespace

Report fault_report(const FaultOptions& options, const pager::PagerOptions& pager,
                    const FaultResult& result) {
  Report report;
  report.benchmark = "fault";
  report.configuration = {
      {"Transport", result.transports},
      {"Memory",
       fmt::format("{} touched, {} local, {} slabs, {} replica(s)", format_size(options.bytes),
                   format_size(pager.local_bytes), format_size(pager.slab_bytes), pager.replicas)},
      {"Touches", fmt::format("{}, {}, {} thread(s){}, seed {}", to_string(options.pattern),
                              to_string(options.access), options.threads,
                              options.pin ? " pinned" : "", options.seed)},
      {"Faults", in_handler(result) ? "resolved by the touching thread in its SIGBUS handler"
                                    : "resolved by the pager's fault workers"},
      {"Loop", loop_of(options)},
      {"Eviction", options.evict ? "running (steady state)" : "none during the measurement"},
      {"Prefetch",
       pager.prefetch_depth == 0 ? "off" : fmt::format("{} pages", pager.prefetch_depth)},
      {"Content", "checked on every touch"}};
  report.rows.push_back({"remote fault", kPageBytes, result.away_ns});
  if (result.present_ns.count() > 0)
    report.rows.push_back({"present page", kPageBytes, result.present_ns});
  if (options.rate_per_s > 0)
    report.rows.push_back({"remote fault, from its touch", kPageBytes, result.touch_ns});
  const Stage whole = stage_of("touch -> resumed", result.touch_ns);
  const Stage queue = stage_of("queue (read -> posted)", result.queue_ns);
  const Stage wire = stage_of("wire (posted -> done)", result.wire_ns);
  report.stages = {
      queue, wire, rest_of(result, whole, queue, wire), whole,
      stage_of(in_handler(result) ? "install call" : "install call, thread's run incl.",
               result.install_ns)};
  report.figures = {{"faults_per_s", per_second(result.away_ns.count(), result.elapsed)},
                    {"touches_per_s", per_second(result.touches, result.elapsed)}};
  report.counts = {{"touches", result.touches},
                   {"faults", result.away_ns.count()},
                   {"reads", result.reads},
                   {"read_bytes", result.read_bytes},
                   {"prefetched_pages", result.prefetched_pages},
                   {"write_faults", result.faults_write},
                   {"rescued_faults", result.faults_rescued},
                   {"waits_for_room", result.faults_waited_room},
                   {"evicted_unchanged", result.evicted_unchanged},
                   {"evicted_clean", result.evicted_clean},
                   {"evicted_written", result.evicted_written},
                   {"write_bytes", result.write_bytes},
                   {"retries", result.retries}};
  if (options.rate_per_s > 0) {
    report.counts.emplace_back("touches_started_late", result.late_touches);
    report.counts.emplace_back("touches_never_started", result.missed_touches);
  }
  return report;
}

}  // namespace farpage::bench
