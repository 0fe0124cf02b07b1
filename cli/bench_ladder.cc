// farpage bench ladder: the latency of each layer below a remote fault, and of the fault itself.
#include "bench/ladder.h"

#include "cli/bench_settings.h"
#include "cli/subcommand.h"

namespace farpage::cli {
namespace {

struct LadderSettings {
  BenchSettings bench;
  int64_t iterations = static_cast<int64_t>(bench::LadderOptions{}.iterations);
};

Result<int> run(const LadderSettings& settings) {
  const bench::LadderOptions options{.iterations = static_cast<uint64_t>(settings.iterations),
                                     .pin = settings.bench.pin,
                                     .loopback = settings.bench.coordinator.empty(),
                                     .seed = static_cast<uint64_t>(settings.bench.seed),
                                     .progress = progress_options(settings.bench)};
  FARPAGE_TRY(pager, pager_options(settings.bench.pager));
  pager.name = "bench-ladder";
  FARPAGE_TRY_VOID(bench::validate(options, pager));
  FARPAGE_TRY(ways, transports_one_by_one(settings.bench.pager));
  FARPAGE_TRY(cluster, open_cluster(settings.bench, bench::ladder_bytes(options, pager)));
  FARPAGE_TRY(report, bench::measure_ladder(options, pager, *cluster.client, ways));
  FARPAGE_TRY_VOID(print_report(std::move(report), settings.bench));
  return kExitOk;
}

}  // namespace

void add_bench_ladder(CLI::App& group, Invocation& invocation) {
  const auto settings = std::make_shared<LadderSettings>();
  Subcommand subcommand(group, "ladder",
                        "Time every floor below a remote fault, and the fault, in one run",
                        {"farpage bench ladder", "farpage bench ladder --pin --output json",
                         "farpage bench ladder --coordinator http://10.0.0.1:7070"});
  subcommand.number("-n,--iterations", settings->iterations, 1, int64_t{1} << 30,
                    "Touches of each step");
  add_options(subcommand, settings->bench);
  subcommand.on_run(invocation, [settings] { return run(*settings); });
}

}  // namespace farpage::cli
