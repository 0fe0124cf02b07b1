#include "kv/options.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>

#include "kv/content.h"
#include "kv/store.h"

namespace kv {
namespace {

constexpr uint64_t kMaxValues = uint64_t{1} << 32;
constexpr uint64_t kMaxThreads = 64;

std::optional<uint64_t> parse_number(const std::string& text, uint64_t low, uint64_t high) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (number < low || number > high) return std::nullopt;
  return number;
}

// One option with a value: its name, a description of its values, and a function that applies one
// (false: refused).
struct Option {
  std::string name;
  std::string takes;
  std::string help;
  std::function<bool(const std::string&, Options&)> take;
};

bool take_size(const std::string& text, uint64_t& size) {
  const auto parsed = parse_size(text);
  if (parsed) size = *parsed;
  return parsed.has_value();
}

template <typename Number>
bool take_number(const std::string& text, uint64_t low, uint64_t high, Number& number) {
  const auto parsed = parse_number(text, low, high);
  if (parsed) number = static_cast<Number>(*parsed);
  return parsed.has_value();
}

// "1K" or "100-64K".
bool take_value_bytes(const std::string& text, BenchOptions& bench) {
  const size_t dash = text.find('-');
  const auto low = parse_size(text.substr(0, dash));
  const auto high = dash == std::string::npos ? low : parse_size(text.substr(dash + 1));
  if (!low || !high || *low < kMinContentBytes || *low > *high || *high > kMaxValueBytes)
    return false;
  bench.min_value_bytes = *low;
  bench.max_value_bytes = *high;
  return true;
}

bool take_token_file(const std::string& path, Options& options) {
  std::ifstream file(path);
  return static_cast<bool>(std::getline(file, options.region.token));
}

const std::vector<Option>& all_options() {
  using Text = const std::string&;
  static const std::vector<Option> options = {
      {"--coordinator", "a URL", "http://host:port (default: memory nodes in this process)",
       [](Text text, Options& to) { return !(to.region.coordinator = text).empty(); }},
      {"--pager", "a socket", "of the farpage pager of this host, in place of a coordinator",
       [](Text text, Options& to) { return !(to.region.pager = text).empty(); }},
      {"--token-file", "a readable file", "with the coordinator's bearer token", take_token_file},
      {"--transport", "auto or a list", "such as tcp,shm",
       [](Text text, Options& to) { return !(to.region.transport = text).empty(); }},
      {"--replicas", "1 to 3", "copies of each page",
       [](Text text, Options& to) { return take_number(text, 1, 3, to.region.replicas); }},
      {"--local", "a size", "of the values that may be here at once (default: 64M)",
       [](Text text, Options& to) { return take_size(text, to.region.local_bytes); }},
      {"--size", "a size", "of the region (default: what the values need)",
       [](Text text, Options& to) { return take_size(text, to.region.bytes); }},
      {"--slab", "a size", "unit of borrowing; that of the nodes (default: 64M)",
       [](Text text, Options& to) { return take_size(text, to.region.slab_bytes); }},
      {"--faults", "worker or handler",
       "who resolves them: threads of the pager, or the faulting one",
       [](Text text, Options& to) {
         to.region.resolve_in_handler = text == "handler";
         return to.region.resolve_in_handler || text == "worker";
       }},
      {"--values", "1 to 4294967296", "of the bench (default: 20000)",
       [](Text text, Options& to) { return take_number(text, 1, kMaxValues, to.bench.values); }},
      {"--value-bytes", "a size or a range, 16 to 64M", "such as 100-64K (default: 1K-16K)",
       [](Text text, Options& to) { return take_value_bytes(text, to.bench); }},
      {"--reads", "0 to 4294967296", "of the phase read (default: 20000)",
       [](Text text, Options& to) { return take_number(text, 0, kMaxValues, to.bench.reads); }},
      {"--threads", "1 to 64", "each with a store of its own (default: 1)",
       [](Text text, Options& to) { return take_number(text, 1, kMaxThreads, to.bench.threads); }},
      {"--seed", "a number", "of sizes and order (default: 1)",
       [](Text text, Options& to) { return take_number(text, 0, UINT64_MAX, to.bench.seed); }},
      {"--output", "text or json", "",
       [](Text text, Options& to) {
         to.json = text == "json";
         return to.json || text == "text";
       }},
  };
  return options;
}

}  // namespace

std::optional<uint64_t> parse_size(const std::string& text) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return std::nullopt;
  unsigned shift = 0;
  if (rest + 1 == end) {
    const size_t unit = std::string("KMGT").find(*rest);
    if (unit == std::string::npos) return std::nullopt;
    shift = 10 * (static_cast<unsigned>(unit) + 1);
  } else if (rest != end) {
    return std::nullopt;
  }
  if (number > UINT64_MAX >> shift) return std::nullopt;
  return number << shift;
}

ParsedOptions parse_options(const std::vector<std::string>& arguments) {
  Options options;
  options.region.name = "kv";
  if (arguments.empty() || arguments[0] == "help" || arguments[0] == "--help") return {options, ""};
  if (arguments[0] == "bench") {
    options.command = Options::Command::kBench;
  } else if (arguments[0] == "shell") {
    options.command = Options::Command::kShell;
  } else {
    return {std::nullopt, "no command '" + arguments[0] + "': bench, shell or help"};
  }
  for (size_t i = 1; i < arguments.size(); i += 2) {
    const Option* known = nullptr;
    for (const Option& option : all_options())
      if (option.name == arguments[i]) known = &option;
    if (known == nullptr) return {std::nullopt, "no option '" + arguments[i] + "'; see kv help"};
    if (i + 1 == arguments.size() || !known->take(arguments[i + 1], options))
      return {std::nullopt, known->name + ": takes " + known->takes};
  }
  if (options.bench.values < options.bench.threads)
    return {std::nullopt, "--values: at least one for each of the --threads"};
  return {options, ""};
}

std::string usage() {
  std::string text =
      "kv bench [OPTIONS]   fill, warm up, read, verify, delete; every value is checked\n"
      "kv shell [OPTIONS]   put KEY VALUE [TTL_MS], get KEY, delete KEY, stats; one a line\n\n";
  for (const Option& option : all_options()) {
    std::string line = "  " + option.name + " ";
    line.resize(std::max<size_t>(line.size(), 18), ' ');
    line += option.takes;
    line.resize(std::max<size_t>(line.size() + 2, 48), ' ');
    text += line + option.help;
    while (text.back() == ' ') text.pop_back();
    text += '\n';
  }
  return text;
}

}  // namespace kv
