// farpage bench replay: replays a recorded trace with other replacement policies.
#include "bench/replay.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/subcommand.h"
#include "cli/table.h"

namespace farpage::cli {
namespace {

struct ReplaySettings {
  std::vector<std::string> files;
  int64_t local_percent = 25;
  std::string output = "text";
};

std::string format_text(const std::string& file, const bench::AccessTrace& trace,
                        const bench::ReplayResult& result) {
  std::vector<std::vector<std::string>> rows;
  for (const bench::PolicyResult& policy : result.policies)
    rows.push_back({std::string(to_string(policy.kind)), std::to_string(policy.misses),
                    fmt::format("{:.4f}", result.miss_ratio(policy)),
                    fmt::format("{:.3f}", result.ratio_to_lru(policy)),
                    std::to_string(policy.reads)});
  return fmt::format("{}: {} accesses after {} of warm-up, {} pages, {} local\n{}", file,
                     result.accesses, trace.warm_up(), trace.pages(), result.capacity,
                     format_table({"policy", "misses", "miss ratio", "to LRU's", "READs"}, rows));
}

nlohmann::ordered_json json_of(const std::string& file, const bench::AccessTrace& trace,
                               const bench::ReplayResult& result) {
  nlohmann::ordered_json policies = nlohmann::ordered_json::array();
  for (const bench::PolicyResult& policy : result.policies)
    policies.push_back({{"policy", to_string(policy.kind)},
                        {"misses", policy.misses},
                        {"miss_ratio", result.miss_ratio(policy)},
                        {"ratio_to_lru", result.ratio_to_lru(policy)},
                        {"reads", policy.reads}});
  return {{"file", file},
          {"pages", trace.pages()},
          {"local_pages", result.capacity},
          {"warm_up", trace.warm_up()},
          {"accesses", result.accesses},
          {"policies", std::move(policies)}};
}

Result<int> run(const ReplaySettings& settings) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  std::string text;
  for (const std::string& file : settings.files) {
    FARPAGE_TRY(trace, bench::AccessTrace::read_file(file));
    FARPAGE_TRY(result, bench::replay_all(trace, static_cast<uint32_t>(settings.local_percent)));
    all.push_back(json_of(file, trace, result));
    text += (text.empty() ? "" : "\n") + format_text(file, trace, result);
  }
  fmt::print("{}", settings.output == "json" ? all.dump(2) + "\n" : text);
  return kExitOk;
}

}  // namespace

void add_bench_replay(CLI::App& group, Invocation& invocation) {
  const auto settings = std::make_shared<ReplaySettings>();
  Subcommand subcommand(
      group, "replay",
      "Replay recorded touches through the pager's replacement policy, FIFO, CLOCK, LRU and "
      "S3-FIFO",
      {"farpage bench fault --pattern zipf --prefetch 0 --record zipf.trace",
       "farpage bench replay zipf.trace --local 25", "farpage bench replay *.trace --output json"});
  subcommand.files(settings->files, "Traces that farpage bench fault --record has written")
      .number("--local", settings->local_percent, 1, 100,
              "Percent of a trace's pages that may be resident")
      .choice("--output", settings->output, {"text", "json"}, "Output format",
              Subcommand::Scope::kShared);
  subcommand.on_run(invocation, [settings] { return run(*settings); });
}

}  // namespace farpage::cli
