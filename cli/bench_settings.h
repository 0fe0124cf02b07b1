// The command-line options that all benchmarks share.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "bench/progress.h"
#include "bench/report.h"
#include "cli/embedded_cluster.h"
#include "cli/run_settings.h"
#include "coordinator/client.h"

namespace farpage::cli {

struct BenchSettings {
  PagerSettings pager;
  std::string coordinator;  // empty: an embedded one
  std::string token_file;
  bool pin = false;
  int64_t seed = 1;
  std::string output = "text";
  std::string html;       // additional output file; empty: none
  std::string hgrm;       // directory for percentile files; empty: none
  bool cpu_freq = false;  // perftest's -F: see its help
};

// The options that all benchmarks share, including the pager's. perftest's short flags have the
// same meaning where they apply: -d, -i, -x, -F, and those of the functions below.
void add_options(Subcommand& subcommand, BenchSettings& settings);

// The length of a measurement: a number of operations, or a duration.
struct AmountSettings {
  int64_t iterations = 10'000;
  std::optional<Milliseconds> duration;
};
// -n, --iterations and -D, --duration, which exclude each other. `what`: "Touches to measure".
void add_options(Subcommand& subcommand, AmountSettings& settings, const std::string& what);
// 0 when no duration is given. kInvalid: given as 0.
Result<Milliseconds> duration_of(const AmountSettings& settings);

// The cluster that a benchmark measures. Threads: one.
struct BenchCluster {
  std::optional<EmbeddedCluster> embedded;
  std::unique_ptr<coordinator::Client> client;
};
// The cluster of --coordinator, or an embedded one that lends at least `needed_bytes` with each
// node.
Result<BenchCluster> open_cluster(const BenchSettings& settings, uint64_t needed_bytes);

// For benchmarks that measure each transport separately: one list, with one transport, for each
// that the settings allow and this build has.
Result<std::vector<std::vector<std::unique_ptr<rdma::Transport>>>> transports_one_by_one(
    const PagerSettings& settings);

// A measurement over each of these in turn. A transport that is kUnsupported is skipped; if none is
// left, the result is kUnsupported with all reasons. Other failures are returned unchanged.
template <typename Measure>
auto measure_each(const std::vector<std::vector<std::unique_ptr<rdma::Transport>>>& ways,
                  Measure measure)
    -> Result<std::vector<typename decltype(measure(*ways.front().front()))::value_type>> {
  std::vector<typename decltype(measure(*ways.front().front()))::value_type> results;
  std::string reasons;
  for (const auto& way : ways) {
    auto result = measure(*way.front());
    if (result) {
      results.push_back(std::move(*result));
    } else if (result.error().code == ErrorCode::kUnsupported) {
      reasons += (reasons.empty() ? "" : "; ") + result.error().context;
    } else {
      return tl::unexpected(std::move(result).error());
    }
  }
  if (results.empty()) return fail(ErrorCode::kUnsupported, "no transport works: " + reasons);
  return results;
}

// Progress is shown only on a terminal and with text output.
bench::ProgressOptions progress_options(const BenchSettings& settings);

// Adds the description of the setup, prints the report, and writes the requested files.
Status print_report(bench::Report report, const BenchSettings& settings);

}  // namespace farpage::cli
