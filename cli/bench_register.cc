// farpage bench register: the time to lease a slab.
#include "bench/register_bench.h"

#include "base/size.h"
#include "cli/bench_settings.h"
#include "cli/subcommand.h"

namespace farpage::cli {
namespace {

constexpr std::string_view kSizes = "2M,16M,64M";

struct RegisterSettings {
  BenchSettings bench;
  std::string sizes;
  AmountSettings amount{.iterations = static_cast<int64_t>(bench::RegisterOptions{}.iterations),
                        .duration = {}};
};

// The slab size of an existing cluster is fixed.
Result<std::vector<uint64_t>> slab_sizes(const RegisterSettings& settings) {
  if (!settings.bench.coordinator.empty()) {
    if (settings.sizes.empty()) return std::vector<uint64_t>{settings.bench.pager.slab_bytes};
    return fail(ErrorCode::kInvalid,
                "--sizes: not with --coordinator, whose nodes have slabs of one size (--slab)");
  }
  std::string_view rest = settings.sizes.empty() ? kSizes : std::string_view(settings.sizes);
  std::vector<uint64_t> sizes;
  while (true) {
    const size_t comma = rest.find(',');
    const Result<uint64_t> size = parse_size(rest.substr(0, comma));
    if (!size) return fail_with("--sizes", size.error());
    sizes.push_back(*size);
    if (comma == std::string_view::npos) return sizes;
    rest.remove_prefix(comma + 1);
  }
}

Result<bench::RegisterOptions> register_options(const RegisterSettings& settings,
                                                const BenchSettings& bench) {
  FARPAGE_TRY(duration, duration_of(settings.amount));
  const auto pager = pager_options(bench.pager);
  if (!pager) return fail_with("--sizes", pager.error());
  const bench::RegisterOptions options{
      .iterations = static_cast<uint64_t>(settings.amount.iterations),
      .duration = duration,
      .slab_bytes = bench.pager.slab_bytes,
      .seed = static_cast<uint64_t>(bench.seed),
      .channel = pager->channel,
      .progress = progress_options(bench)};
  FARPAGE_TRY_VOID(bench::validate(options));
  return options;
}

// Uses the first transport that works: the node registers a slab with all of its transports anyway.
Result<bench::RegisterResult> measure(const bench::RegisterOptions& options,
                                      const BenchSettings& bench) {
  FARPAGE_TRY(transports, make_transports(bench.pager));
  FARPAGE_TRY(cluster, open_cluster(bench, bench::kRegisterSlabs * options.slab_bytes));
  Result<bench::RegisterResult> result = fail(ErrorCode::kUnsupported, "no transport works");
  for (const auto& transport : transports) {
    result = bench::measure_leases(options, *transport, *cluster.client);
    if (result || result.error().code != ErrorCode::kUnsupported) return result;
  }
  return result;
}

Result<int> run(const RegisterSettings& settings) {
  FARPAGE_TRY(sizes, slab_sizes(settings));
  std::vector<std::pair<BenchSettings, bench::RegisterOptions>> runs;
  for (const uint64_t size : sizes) {
    BenchSettings bench = settings.bench;
    bench.pager.slab_bytes = size;
    FARPAGE_TRY(options, register_options(settings, bench));
    runs.emplace_back(std::move(bench), options);
  }
  std::vector<bench::RegisterResult> results;
  for (const auto& [bench, options] : runs) {
    FARPAGE_TRY(result, measure(options, bench));
    results.push_back(std::move(result));
  }
  FARPAGE_TRY_VOID(print_report(bench::register_report(results), settings.bench));
  return kExitOk;
}

}  // namespace

void add_bench_register(CLI::App& group, Invocation& invocation) {
  const auto settings = std::make_shared<RegisterSettings>();
  Subcommand subcommand(
      group, "register", "Time leases of slabs until they are usable, and their return",
      {"farpage bench register", "farpage bench register -s 2M,1G -n 20",
       "farpage bench register --coordinator http://10.0.0.1:7070 --slab 64M --output json"});
  add_options(subcommand, settings->amount, "Leases of each size");
  subcommand.text("-s,--sizes", settings->sizes,
                  "Slab sizes, each on an embedded node of its own (default: 2M,16M,64M; with "
                  "--coordinator: --slab)");
  add_options(subcommand, settings->bench);
  subcommand.on_run(invocation, [settings] { return run(*settings); });
}

}  // namespace farpage::cli
