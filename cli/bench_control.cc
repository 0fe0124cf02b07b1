// farpage bench control: request rate and latency of a coordinator.
#include "bench/control_bench.h"

#include "bench/fault_bench.h"
#include "cli/bench_settings.h"
#include "cli/subcommand.h"

namespace farpage::cli {
namespace {

struct ControlSettings {
  BenchSettings bench;
  AmountSettings amount{.iterations = static_cast<int64_t>(bench::ControlOptions{}.iterations),
                        .duration = {}};
  int64_t threads = bench::ControlOptions{}.threads;
};

Result<int> run(const ControlSettings& settings) {
  FARPAGE_TRY(duration, duration_of(settings.amount));
  FARPAGE_TRY(pager, pager_options(settings.bench.pager));
  const bench::ControlOptions options{
      .iterations = static_cast<uint64_t>(settings.amount.iterations),
      .duration = duration,
      .threads = static_cast<uint32_t>(settings.threads),
      .slab_bytes = pager.slab_bytes,
      .progress = progress_options(settings.bench)};
  FARPAGE_TRY_VOID(bench::validate(options));
  FARPAGE_TRY(cluster, open_cluster(settings.bench, pager.slab_bytes));
  FARPAGE_TRY(result, bench::measure_control(options, *cluster.client));
  FARPAGE_TRY_VOID(print_report(bench::control_report(options, result), settings.bench));
  return kExitOk;
}

}  // namespace

void add_bench_control(CLI::App& group, Invocation& invocation) {
  const auto settings = std::make_shared<ControlSettings>();
  Subcommand subcommand(group, "control",
                        "Measure rate and latency of requests to a coordinator, by kind",
                        {"farpage bench control", "farpage bench control --threads 16 -D 10",
                         "farpage bench control --coordinator http://10.0.0.1:7070 --output json"});
  add_options(subcommand, settings->amount, "Requests to send");
  subcommand.number("--threads", settings->threads, 1, bench::kMaxThreads,
                    "Threads that send requests at the same time");
  add_options(subcommand, settings->bench);
  subcommand.on_run(invocation, [settings] { return run(*settings); });
}

}  // namespace farpage::cli
