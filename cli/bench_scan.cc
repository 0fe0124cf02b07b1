// farpage bench scan: the throughput of a sequential walk through remote pages.
#include "bench/scan_bench.h"

#include "bench/fault_bench.h"
#include "cli/bench_settings.h"
#include "cli/subcommand.h"

namespace farpage::cli {
namespace {

struct ScanSettings {
  BenchSettings bench;
  uint64_t size_bytes = bench::ScanOptions{}.bytes;
  int64_t threads = 1;
};

Result<int> run(const ScanSettings& settings) {
  const bench::ScanOptions options{.bytes = settings.size_bytes,
                                   .threads = static_cast<uint32_t>(settings.threads),
                                   .pin = settings.bench.pin,
                                   .seed = static_cast<uint64_t>(settings.bench.seed),
                                   .progress = progress_options(settings.bench)};
  FARPAGE_TRY(pager, pager_options(settings.bench.pager));
  pager.name = "bench-scan";
  FARPAGE_TRY_VOID(bench::validate(options));
  FARPAGE_TRY(transports, make_transports(settings.bench.pager));
  FARPAGE_TRY(cluster, open_cluster(settings.bench, bench::scan_bytes(options, pager)));
  FARPAGE_TRY(result, bench::measure_scan(options, pager, *cluster.client, transports));
  FARPAGE_TRY_VOID(print_report(bench::scan_report(options, pager, result), settings.bench));
  return kExitOk;
}

}  // namespace

void add_bench_scan(CLI::App& group, Invocation& invocation) {
  const auto settings = std::make_shared<ScanSettings>();
  Subcommand subcommand(
      group, "scan", "Walk once through remote memory: MB/s, beside READs of the same transport",
      {"farpage bench scan", "farpage bench scan -s 1G --threads 2 --transport tcp",
       "farpage bench scan --prefetch 0 --output json"});
  subcommand.size("-s,--size", settings->size_bytes, "Far memory to walk through")
      .number("--threads", settings->threads, 1, bench::kMaxThreads,
              "Walking threads, each with its own share of the memory");
  add_options(subcommand, settings->bench);
  subcommand.on_run(invocation, [settings] { return run(*settings); });
}

}  // namespace farpage::cli
