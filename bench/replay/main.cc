// replay: replays recorded touches through replacement policies (--help).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "bench/replay/replay.h"

namespace {

using farpage::ErrorCode;
using farpage::Result;
using farpage::bench::PolicyKind;
using farpage::bench::PolicyResult;
using farpage::bench::ReplayResult;
using farpage::pager::AccessTrace;

constexpr int kExitOk = 0;
constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;  // invalid command line or file

struct Settings {
  std::vector<std::string> files;
  uint32_t local_percent = 25;
  std::string output = "text";
};

std::string text_of(const std::string& file, const AccessTrace& trace, const ReplayResult& result) {
  std::string text = fmt::format("{}: {} accesses after {} of warm-up, {} pages, {} local\n", file,
                                 result.accesses, trace.warm_up(), trace.pages(), result.capacity);
  constexpr const char* kRow =
      "{:<8} {:>10} {:>11} {:>9} {:>10} {:>10} {:>10} {:>12} {:>12} {:>10}\n";
  text += fmt::format(fmt::runtime(kRow), "policy", "misses", "miss ratio", "to LRU's", "READs",
                      "to FIFO's", "ahead", "write faults", "written back", "unchanged");
  for (const PolicyResult& policy : result.policies)
    text += fmt::format(
        fmt::runtime(kRow), to_string(policy.kind), policy.misses,
        fmt::format("{:.4f}", result.miss_ratio(policy)),
        fmt::format("{:.3f}", result.misses_to(PolicyKind::kLru, policy)), policy.reads,
        fmt::format("{:.3f}", result.reads_to(PolicyKind::kFifo, policy)), policy.more.pages_ahead,
        policy.more.write_faults, policy.more.written_back, policy.more.unchanged);
  return text;
}

nlohmann::ordered_json json_of(const std::string& file, const AccessTrace& trace,
                               const ReplayResult& result) {
  nlohmann::ordered_json policies = nlohmann::ordered_json::array();
  for (const PolicyResult& policy : result.policies)
    policies.push_back({{"policy", to_string(policy.kind)},
                        {"misses", policy.misses},
                        {"miss_ratio", result.miss_ratio(policy)},
                        {"ratio_to_lru", result.misses_to(PolicyKind::kLru, policy)},
                        {"reads", policy.reads},
                        {"reads_to_fifo", result.reads_to(PolicyKind::kFifo, policy)},
                        {"pages_ahead", policy.more.pages_ahead},
                        {"reads_ahead", policy.more.reads_ahead},
                        {"write_faults", policy.more.write_faults},
                        {"written_back", policy.more.written_back},
                        {"unchanged", policy.more.unchanged}});
  return {{"file", file},
          {"pages", trace.pages()},
          {"local_pages", result.capacity},
          {"warm_up", trace.warm_up()},
          {"accesses", result.accesses},
          {"policies", std::move(policies)}};
}

Result<std::string> run(const Settings& settings) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  std::string text;
  for (const std::string& file : settings.files) {
    FARPAGE_TRY(trace, AccessTrace::read_file(file));
    FARPAGE_TRY(result, farpage::bench::replay_all(trace, settings.local_percent));
    all.push_back(json_of(file, trace, result));
    text += (text.empty() ? "" : "\n") + text_of(file, trace, result);
  }
  return settings.output == "json" ? all.dump(2) + "\n" : text;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app(
      "Replay recorded touches through the pager's replacement policy, FIFO, CLOCK, LRU and "
      "S3-FIFO",
      "replay");
  app.add_option(
         "FILE", settings.files,
         "Traces that `farpage run --record-trace` or `farpage bench fault --record` has written")
      ->required();
  app.add_option("--local", settings.local_percent,
                 "Percent of the pages that are in use at the peak that may be resident")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  app.add_option("--output", settings.output, "Output format")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.footer(
      "Examples:\n"
      "  farpage run --local 1M --record-trace sort.trace -- sort -S 1G big.txt\n"
      "  farpage bench fault --pattern zipf --prefetch 0 --record zipf.trace\n"
      "  replay zipf.trace --local 25\n"
      "  replay *.trace --output json");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  const Result<std::string> output = run(settings);
  if (!output) {
    fmt::print(stderr, "replay: {}\n", output.error().message());
    return output.error().code == ErrorCode::kInvalid ? kExitUsage : kExitFailure;
  }
  fmt::print("{}", *output);
  return kExitOk;
}
