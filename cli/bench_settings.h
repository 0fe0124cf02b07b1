// What all benchmarks have in common on the command line.
#pragma once

#include <memory>
#include <optional>
#include <string>

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
  std::string html;  // file to write, too; empty: none
  std::string hgrm;  // folder for percentile files; empty: none
};

// Everything but the pager's knobs.
void add_options(Subcommand& subcommand, BenchSettings& settings);

// The cluster that a benchmark measures. Threads: one.
struct BenchCluster {
  std::optional<EmbeddedCluster> embedded;
  std::unique_ptr<coordinator::Client> client;
};
// The named one, or an embedded one that lends at least `needed_bytes` with each node.
Result<BenchCluster> open_cluster(const BenchSettings& settings, uint64_t needed_bytes);

// For benchmarks that measure each transport by itself: one list for each that the settings allow
// and this build has, with that one alone.
Result<std::vector<std::vector<std::unique_ptr<rdma::Transport>>>> transports_one_by_one(
    const PagerSettings& settings);

// Adds what was measured where, prints it, and writes the files that were asked for.
Status print_report(bench::Report report, const BenchSettings& settings);

}  // namespace farpage::cli
