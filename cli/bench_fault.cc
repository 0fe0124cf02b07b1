// farpage bench fault: the latency of a fault on a page of far memory.
#include "bench/fault_bench.h"

#include "cli/bench_settings.h"
#include "cli/subcommand.h"

namespace farpage::cli {
namespace {

struct FaultSettings {
  BenchSettings bench;
  uint64_t size_bytes = bench::FaultOptions{}.bytes;
  AmountSettings amount;
  int64_t rate = 0;
  int64_t compute_us = 0;
  std::string pattern = "random";
  std::string access = "read";
  std::string faults = "worker";
  int64_t threads = 1;
  bool no_evict = false;
  std::string record;  // file to write the touches to; empty: none
};

Result<bench::FaultOptions> fault_options(const FaultSettings& settings) {
  FARPAGE_TRY(duration, duration_of(settings.amount));
  bench::FaultOptions options;
  options.bytes = settings.size_bytes;
  options.iterations = static_cast<uint64_t>(settings.amount.iterations);
  options.duration = duration;
  options.rate_per_s = static_cast<uint64_t>(settings.rate);
  options.compute = std::chrono::microseconds(settings.compute_us);
  options.pattern = *bench::pattern_from(settings.pattern);
  options.access = *bench::access_from(settings.access);
  options.faults = *bench::fault_mode_from(settings.faults);
  options.threads = static_cast<uint32_t>(settings.threads);
  options.evict = !settings.no_evict;
  options.pin = settings.bench.pin;
  options.progress = progress_options(settings.bench);
  options.record = !settings.record.empty();
  options.seed = static_cast<uint64_t>(settings.bench.seed);
  return options;
}

Result<int> run(const FaultSettings& settings) {
  FARPAGE_TRY(options, fault_options(settings));
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
       "farpage bench fault -D 10 -s 1G --pattern zipf --rate 5000",
       "farpage bench fault --compute-us 200 --transport shm",
       "farpage bench fault --no-evict --faults handler",
       "farpage bench fault --coordinator http://10.0.0.1:7070 --transport verbs -d rxe0 -x 1"});
  add_options(subcommand, settings->amount, "Touches to measure");
  subcommand.size("-s,--size", settings->size_bytes, "Far memory to touch")
      .number("--rate", settings->rate, 0, bench::kMaxRatePerSecond,
              "Touches per second of each thread (an open loop; latency counts from the intended "
              "start of a touch); 0: each touch starts when the previous one ends")
      .number("--compute-us", settings->compute_us, 0, bench::kMaxCompute.count(),
              "Microseconds that a thread computes before each touch, as a real program does")
      .choice("--pattern", settings->pattern, {"random", "sequential", "strided", "zipf"},
              "Order of the touches")
      .choice("--access", settings->access, {"read", "write", "mixed"}, "Kind of access")
      .choice("--faults", settings->faults, {"worker", "handler"},
              "Who resolves the faults: threads of the pager, or the touching thread in its SIGBUS "
              "handler (an option of libfarpage)")
      .number("--threads", settings->threads, 1, bench::kMaxThreads,
              "Touching threads, each with its own share of the memory")
      .flag("--no-evict", settings->no_evict,
            "Evict all pages first, then touch each page once with room for all")
      .text("--record", settings->record,
            "Also record the touched pages in this file, for the tool replay");
  add_options(subcommand, settings->bench);
  subcommand.on_run(invocation, [settings] { return run(*settings); });
}

}  // namespace farpage::cli
