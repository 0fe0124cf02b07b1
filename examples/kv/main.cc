// kv: a key-value store with values in remote memory.
#include <cstdio>
#include <iostream>

#include "kv/bench.h"
#include "kv/options.h"
#include "kv/report.h"
#include "kv/shell.h"

namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr uint64_t kShellBytes = uint64_t{1} << 30;

int fail(int status, const std::string& text) {
  std::fprintf(stderr, "kv: %s\n", text.c_str());
  return status;
}

int run_bench(const kv::Options& options, farpage::Region& region) {
  const auto say = [](const std::string& phase) {
    std::fprintf(stderr, "kv: %s ...\n", phase.c_str());
  };
  const auto result = kv::run_bench(options.bench, region, say);
  if (!result) return fail(kExitFailed, result.error().message);
  const std::string report = options.json ? kv::format_json(*result) : kv::format_text(*result);
  std::fputs(report.c_str(), stdout);
  if (!result->all_right()) return fail(kExitFailed, "values were wrong: see the report");
  return 0;
}

int run_shell(farpage::Region& region) {
  const kv::SteadyClock clock;
  farpage::RegionMemory memory(region);
  kv::Store store(memory, clock);
  kv::run_shell(store, std::cin, std::cout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const kv::ParsedOptions parsed = kv::parse_options({argv + 1, argv + argc});
  if (!parsed.options) return fail(kExitUsage, parsed.problem);
  kv::Options options = *parsed.options;
  using Command = kv::Options::Command;
  if (options.command == Command::kHelp) {
    std::fputs(kv::usage().c_str(), stdout);
    return 0;
  }
  const bool is_bench = options.command == Command::kBench;
  if (options.region.bytes == 0)
    options.region.bytes = is_bench ? kv::region_bytes(options.bench) : kShellBytes;
  farpage::RegionResult<farpage::Region> region = farpage::Region::create(options.region);
  if (!region) return fail(kExitFailed, region.error().message);
  return is_bench ? run_bench(options, *region) : run_shell(*region);
}
