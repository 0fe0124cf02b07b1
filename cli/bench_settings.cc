#include "cli/bench_settings.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <limits>

#include "bench/report_files.h"
#include "cli/build_info.h"
#include "cli/secrets.h"

namespace farpage::cli {

void add_options(Subcommand& subcommand, BenchSettings& settings) {
  subcommand
      .text("--coordinator", settings.coordinator,
            "URL of the coordinator; of several all, with commas between (default: an embedded "
            "one, with a "
            "node on this host)",
            Subcommand::Scope::kShared)
      .text("--token-file", settings.token_file, "File with the coordinator's bearer token",
            Subcommand::Scope::kShared)
      .flag("--pin", settings.pin, "Pin each touching thread to a CPU of its own")
      .number("--seed", settings.seed, 0, std::numeric_limits<int64_t>::max(),
              "Seed of the access order and of the content")
      .choice("--output", settings.output, {"text", "json"}, "Output format",
              Subcommand::Scope::kShared)
      .text("--html", settings.html, "Also write a page with the latencies plotted to this file")
      .text("--hgrm", settings.hgrm,
            "Also write percentiles to this folder, for HdrHistogram's plotter")
      .flag("-F,--cpu-freq", settings.cpu_freq,
            "Accepted as in perftest, without effect: no benchmark here looks at the CPU's "
            "frequency");
  add_options(subcommand, settings.pager, ShortFlags::kPerftest);
}

void add_options(Subcommand& subcommand, AmountSettings& settings, const std::string& what) {
  constexpr int64_t kMaxIterations = int64_t{1} << 40;
  subcommand.number("-n,--iterations", settings.iterations, 1, kMaxIterations, what)
      .duration("-D,--duration", settings.duration, "Measure for this time instead, up to 24h")
      .excludes("--iterations");
}

Result<Milliseconds> duration_of(const AmountSettings& settings) {
  if (!settings.duration) return Milliseconds(0);
  if (settings.duration->count() == 0) return fail(ErrorCode::kInvalid, "--duration: more than 0");
  return *settings.duration;
}

Result<BenchCluster> open_cluster(const BenchSettings& settings, uint64_t needed_bytes) {
  BenchCluster cluster;
  FARPAGE_TRY(token, read_token(settings.token_file));
  std::string url = settings.coordinator;
  if (url.empty()) {
    const uint64_t slab = settings.pager.slab_bytes;
    FARPAGE_TRY(started,
                EmbeddedCluster::start({.lend_bytes = (needed_bytes + slab - 1) / slab * slab,
                                        .slab_bytes = slab,
                                        .nodes = static_cast<uint32_t>(settings.pager.replicas),
                                        .transports = settings.pager.transports,
                                        .device_words = device_words(settings.pager)}));
    cluster.embedded.emplace(std::move(started));
    url = cluster.embedded->coordinator_url();
  }
  FARPAGE_TRY(client, coordinator::Client::create({.url = url, .token = token}));
  cluster.client = std::move(client);
  return cluster;
}

Result<std::vector<std::vector<std::unique_ptr<rdma::Transport>>>> transports_one_by_one(
    const PagerSettings& settings) {
  FARPAGE_TRY(all, make_transports(settings));
  std::vector<std::vector<std::unique_ptr<rdma::Transport>>> ways;
  for (std::unique_ptr<rdma::Transport>& transport : all)
    ways.emplace_back().push_back(std::move(transport));
  return ways;
}

bench::ProgressOptions progress_options(const BenchSettings& settings) {
  return {.shown = settings.output == "text" && ::isatty(STDERR_FILENO) == 1, .fd = STDERR_FILENO};
}

Status print_report(bench::Report report, const BenchSettings& settings) {
  const BuildInfo build = build_info();
  report.environment = bench::observe_environment();
  report.environment.commit = build.commit;
  report.environment.build_type = build.build_type;
  fmt::print("{}", settings.output == "json" ? format_json(report) : format_text(report));
  if (!settings.html.empty()) FARPAGE_TRY_VOID(bench::write_html_file(report, settings.html));
  if (!settings.hgrm.empty()) FARPAGE_TRY_VOID(bench::write_hgrm_files(report, settings.hgrm));
  return {};
}

}  // namespace farpage::cli
