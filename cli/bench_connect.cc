// farpage bench connect: the time to open a channel to a memory node.
#include "bench/connect_bench.h"

#include "cli/bench_settings.h"
#include "cli/subcommand.h"

namespace farpage::cli {
namespace {

struct ConnectSettings {
  BenchSettings bench;
  AmountSettings amount{.iterations = static_cast<int64_t>(bench::ConnectOptions{}.iterations),
                        .duration = {}};
};

Result<int> run(const ConnectSettings& settings) {
  FARPAGE_TRY(duration, duration_of(settings.amount));
  FARPAGE_TRY(pager, pager_options(settings.bench.pager));
  const bench::ConnectOptions options{
      .iterations = static_cast<uint64_t>(settings.amount.iterations),
      .duration = duration,
      .slab_bytes = pager.slab_bytes,
      .pin = settings.bench.pin,
      .seed = static_cast<uint64_t>(settings.bench.seed),
      .channel = pager.channel,
      .progress = progress_options(settings.bench)};
  FARPAGE_TRY_VOID(bench::validate(options));
  FARPAGE_TRY(ways, transports_one_by_one(settings.bench.pager));
  FARPAGE_TRY(cluster, open_cluster(settings.bench, pager.slab_bytes));
  FARPAGE_TRY(results, measure_each(ways, [&](rdma::Transport& transport) {
                return bench::measure_connects(options, transport, *cluster.client);
              }));
  FARPAGE_TRY_VOID(print_report(bench::connect_report(options, results), settings.bench));
  return kExitOk;
}

}  // namespace

void add_bench_connect(CLI::App& group, Invocation& invocation) {
  const auto settings = std::make_shared<ConnectSettings>();
  Subcommand subcommand(
      group, "connect", "Time new channels to a memory node, until their first READ completes",
      {"farpage bench connect", "farpage bench connect --transport tcp -D 10",
       "farpage bench connect --coordinator http://10.0.0.1:7070 --transport verbs -d rxe0"});
  add_options(subcommand, settings->amount, "Channels to create");
  add_options(subcommand, settings->bench);
  subcommand.on_run(invocation, [settings] { return run(*settings); });
}

}  // namespace farpage::cli
