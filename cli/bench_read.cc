// farpage bench read: the latency of READs without faults.
#include "bench/read_bench.h"

#include "cli/bench_settings.h"
#include "cli/subcommand.h"

namespace farpage::cli {
namespace {

struct ReadSettings {
  BenchSettings bench;
  std::string operation = "read";
  uint64_t bytes = bench::ReadOptions{}.bytes;
  AmountSettings amount;
  int64_t depth = 1;
};

Result<int> run(const ReadSettings& settings) {
  FARPAGE_TRY(pager, pager_options(settings.bench.pager));
  FARPAGE_TRY(duration, duration_of(settings.amount));
  bench::ReadOptions options;
  options.operation =
      settings.operation == "write" ? rdma::OperationKind::kWrite : rdma::OperationKind::kRead;
  options.bytes = settings.bytes;
  options.iterations = static_cast<uint64_t>(settings.amount.iterations);
  options.duration = duration;
  options.depth = static_cast<uint32_t>(settings.depth);
  options.slab_bytes = pager.slab_bytes;
  options.pin = settings.bench.pin;
  options.progress = progress_options(settings.bench);
  options.seed = static_cast<uint64_t>(settings.bench.seed);
  options.channel = pager.channel;
  FARPAGE_TRY_VOID(bench::validate(options));
  FARPAGE_TRY(ways, transports_one_by_one(settings.bench.pager));
  FARPAGE_TRY(cluster, open_cluster(settings.bench, pager.slab_bytes));
  FARPAGE_TRY(results, measure_each(ways, [&](rdma::Transport& transport) {
                return bench::measure_reads(options, transport, *cluster.client);
              }));
  FARPAGE_TRY_VOID(print_report(bench::read_report(options, results), settings.bench));
  return kExitOk;
}

}  // namespace

void add_bench_read(CLI::App& group, Invocation& invocation) {
  const auto settings = std::make_shared<ReadSettings>();
  Subcommand subcommand(
      group, "read", "Time READs or WRITEs of a memory node's slab, over each transport",
      {"farpage bench read", "farpage bench read -s 4096 -n 100000 -d rxe0 -i 1 -x 1 -F",
       "farpage bench read --transport tcp --depth 16 -D 10",
       "farpage bench read --operation write --bytes 64K --output json"});
  add_options(subcommand, settings->amount, "Operations to measure");
  subcommand.choice("--operation", settings->operation, {"read", "write"}, "What to time")
      .size("-s,--bytes", settings->bytes, "Size of one operation, a power of two")
      .number("--depth", settings->depth, 1, bench::kMaxDepth, "Operations in flight");
  add_options(subcommand, settings->bench);
  subcommand.on_run(invocation, [settings] { return run(*settings); });
}

}  // namespace farpage::cli
