// The command line of kv.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <farpage/region.h>

namespace kv {

struct BenchOptions {
  uint64_t values = 20'000;
  uint64_t min_value_bytes = 1 << 10;  // sizes are spread evenly over the octaves between
  uint64_t max_value_bytes = 16 << 10;
  uint64_t reads = 20'000;  // of the phase "read"; "warm-up" does half as many
  uint32_t threads = 1;     // each with its own store, in the same region
  uint64_t seed = 1;
};

struct Options {
  enum class Command { kBench, kShell, kHelp } command = Command::kHelp;
  farpage::RegionOptions region;  // bytes 0: chosen by the command
  BenchOptions bench;
  bool json = false;
};

// The options, or an error that names the option.
struct ParsedOptions {
  std::optional<Options> options;
  std::string problem;
};
ParsedOptions parse_options(const std::vector<std::string>& arguments);

std::string usage();

// "4096", "64K", "1M", "2G".
std::optional<uint64_t> parse_size(const std::string& text);

}  // namespace kv
