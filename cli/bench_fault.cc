// farpage bench fault: how long a thread waits for a page of far memory.
#include "bench/fault_bench.h"

#include "cli/bench_settings.h"
#include "cli/subcommand.h"

namespace farpage::cli {
namespace {

struct FaultSettings {
  BenchSettings bench;
  uint64_t size_bytes = bench::FaultOptions{}.bytes;
  int64_t iterations = static_cast<int64_t>(bench::FaultOptions{}.iterations);
  std::string pattern = "random";
  std::string access = "read";
  int64_t threads = 1;
  bool no_evict = false;
  std::string record;  // file to write the touches to; empty: none
};

bench::FaultOptions fault_options(const FaultSettings& settings) {
  bench::FaultOptions options;
  options.bytes = settings.size_bytes;
  options.iterations = static_cast<uint64_t>(settings.iterations);
  options.pattern = *bench::pattern_from(settings.pattern);
  options.access = *bench::access_from(settings.access);
  options.threads = static_cast<uint32_t>(settings.threads);
  options.evict = !settings.no_evict;
  options.pin = settings.bench.pin;
  options.record = !settings.record.empty();
  options.seed = static_cast<uint64_t>(settings.bench.seed);
  return options;
}

Result<int> run(const FaultSettings& settings) {
  const bench::FaultOptions options = fault_options(settings);
  FARPAGE_TRY(pager, pager_options(settings.bench.pager));
  pager.name = "bench-fault";
  FARPAGE_TRY_VOID(bench::validate(options, pager));
  FARPAGE_TRY(transports, make_transports(settings.bench.pager));
  FARPAGE_TRY(cluster, open_cluster(settings.bench, bench::window_bytes(options, pager)));
  FARPAGE_TRY(result, bench::measure_faults(options, pager, *cluster.client, transports));
  if (result.trace) FARPAGE_TRY_VOID(result.trace->write_file(settings.record));
  FARPAGE_TRY_VOID(print_report(bench::fault_report(options, pager, result), settings.bench));
  return kExitOk;
}

}  // namespace

void add_bench_fault(CLI::App& group, Invocation& invocation) {
  const auto settings = std::make_shared<FaultSettings>();
  Subcommand subcommand(
      group, "fault", "Time touches of far memory, from the touch to the next instruction",
      {"farpage bench fault --transport tcp --no-evict",
       "farpage bench fault --local 64M --size 256M --access mixed --threads 2 --output json",
       "farpage bench fault --coordinator http://10.0.0.1:7070 --transport verbs --prefetch 0"});
  subcommand.size("--size", settings->size_bytes, "Far memory to touch")
      .number("--iterations", settings->iterations, 1, int64_t{1} << 40, "Touches to measure")
      .choice("--pattern", settings->pattern, {"random", "sequential", "strided", "zipf"},
              "Order of the touches")
      .choice("--access", settings->access, {"read", "write", "mixed"}, "What a touch is")
      .number("--threads", settings->threads, 1, bench::kMaxThreads,
              "Touching threads, each with its own share of the memory")
      .flag("--no-evict", settings->no_evict,
            "Push everything out first, then touch each page once with room for all")
      .text("--record", settings->record,
            "Also write which pages were touched to this file, for farpage bench replay");
  add_options(subcommand, settings->bench);
  add_options(subcommand, settings->bench.pager);
  subcommand.on_run(invocation, [settings] { return run(*settings); });
}

}  // namespace farpage::cli
