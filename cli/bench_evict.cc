// farpage bench evict: the rate at which dirty pages are evicted.
#include "bench/evict_bench.h"

#include "cli/bench_settings.h"
#include "cli/subcommand.h"

namespace farpage::cli {
namespace {

struct EvictSettings {
  BenchSettings bench;
  uint64_t size_bytes = 0;
  AmountSettings amount{.iterations = static_cast<int64_t>(bench::EvictOptions{}.rounds),
                        .duration = {}};
};

Result<int> run(const EvictSettings& settings) {
  FARPAGE_TRY(duration, duration_of(settings.amount));
  const bench::EvictOptions options{.bytes = settings.size_bytes,
                                    .rounds = static_cast<uint64_t>(settings.amount.iterations),
                                    .duration = duration,
                                    .pin = settings.bench.pin,
                                    .seed = static_cast<uint64_t>(settings.bench.seed),
                                    .progress = progress_options(settings.bench)};
  FARPAGE_TRY(pager, pager_options(settings.bench.pager));
  pager.name = "bench-evict";
  FARPAGE_TRY_VOID(bench::validate(options, pager));
  FARPAGE_TRY(transports, make_transports(settings.bench.pager));
  FARPAGE_TRY(cluster, open_cluster(settings.bench, bench::evict_bytes(options, pager)));
  FARPAGE_TRY(result, bench::measure_evict(options, pager, *cluster.client, transports));
  FARPAGE_TRY_VOID(print_report(bench::evict_report(options, pager, result), settings.bench));
  return kExitOk;
}

}  // namespace

void add_bench_evict(CLI::App& group, Invocation& invocation) {
  const auto settings = std::make_shared<EvictSettings>();
  Subcommand subcommand(
      group, "evict",
      "Dirty memory and evict all of it: pages/s, beside WRITEs of the same transport",
      {"farpage bench evict", "farpage bench evict --local 256M --transport tcp -D 10",
       "farpage bench evict -s 16M -n 100 --replicas 2 --output json"});
  add_options(subcommand, settings->amount, "Rounds to measure");
  subcommand.size("-s,--size", settings->size_bytes,
                  "Memory to dirty in each round; 0: as much as --local and --low-water permit");
  add_options(subcommand, settings->bench);
  subcommand.on_run(invocation, [settings] { return run(*settings); });
}

}  // namespace farpage::cli
