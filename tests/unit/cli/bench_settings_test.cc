#include "cli/bench_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "cli/program.h"

namespace farpage::cli {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

struct BenchParse {
  BenchSettings bench;
  AmountSettings amount;
  uint64_t size_bytes = 1;
  ParsedCommandLine line;
};

std::unique_ptr<BenchParse> parse_bench(Words arguments) {
  auto parse = std::make_unique<BenchParse>();
  const std::vector<AddSubcommand> subcommands = {[&](CLI::App& root, Invocation& invocation) {
    Subcommand bench(root, "bench", "", {"farpage bench"});
    add_options(bench, parse->amount, "Operations");
    bench.size("-s,--size", parse->size_bytes, "Memory");
    add_options(bench, parse->bench);
    bench.on_run(invocation, [] { return kExitOk; });
  }};
  arguments.insert(arguments.begin(), "bench");
  parse_command_line(arguments, subcommands, parse->line);
  return parse;
}

ParsedCommandLine parse_all(Words arguments) {
  ParsedCommandLine parsed;
  parse_command_line(arguments, all_subcommands(), parsed);
  return parsed;
}

TEST(BenchSettings, Defect6PerftestsShortFlagsTakeEffect) {
  const auto parse = parse_bench(
      {"-s", "64K", "-n", "7", "-d", "mlx5_0", "-i", "2", "-x", "3", "-F", "--coordinator", "u"});
  ASSERT_EQ(parse->line.exit_status, kExitOk) << parse->line.problem;
  EXPECT_EQ(parse->size_bytes, 65536U);
  EXPECT_EQ(parse->amount.iterations, 7);
  EXPECT_EQ(*duration_of(parse->amount), Milliseconds(0));
  const rdma::VerbsOptions verbs = verbs_options(parse->bench.pager);
  EXPECT_EQ(verbs.device, "mlx5_0");
  EXPECT_EQ(verbs.device_port, 2);
  EXPECT_EQ(verbs.gid_index, 3);
  EXPECT_TRUE(parse->bench.cpu_freq);
  EXPECT_EQ(*duration_of(parse_bench({"-D", "5"})->amount), Seconds(5));
  EXPECT_EQ(*duration_of(parse_bench({"--duration", "250ms"})->amount), Milliseconds(250));
}

TEST(BenchSettings, Defect6EnvironmentKnowsOptionsByTheirLongForm) {
  ::setenv("FARPAGE_BENCH_ITERATIONS", "9", 1);
  ::setenv("FARPAGE_BENCH_DEVICE", "rxe0", 1);
  const auto parse = parse_bench({});
  ::unsetenv("FARPAGE_BENCH_ITERATIONS");
  ::unsetenv("FARPAGE_BENCH_DEVICE");
  EXPECT_EQ(parse->amount.iterations, 9);
  EXPECT_EQ(parse->bench.pager.device, "rxe0");
}

TEST(BenchSettings, IterationsAndDurationTogetherAreRefusedByTheirNames) {
  for (const Words& both : {Words{"-n", "5", "-D", "5"}, Words{"-D", "5", "--iterations", "5"}}) {
    const auto parse = parse_bench(both);
    EXPECT_EQ(parse->line.exit_status, kExitUsage);
    EXPECT_THAT(parse->line.problem, HasSubstr("--duration"));
    EXPECT_THAT(parse->line.problem, HasSubstr("--iterations"));
  }
}

TEST(BenchSettings, HelpSaysThatTheFrequencyFlagChangesNothing) {
  const ParsedCommandLine help = parse_all({"bench", "fault", "--help"});
  EXPECT_THAT(help.output, HasSubstr("-F,--cpu-freq"));
  EXPECT_THAT(help.output, HasSubstr("without effect"));
}

// A value that a benchmark must refuse with a message that names the flag.
struct Wrong {
  const char* subcommand;
  const char* flag;
  const char* value;
};
const Wrong kWrong[] = {
    {"fault", "--size", "5Q"},         {"fault", "--iterations", "0"},
    {"fault", "--iterations", "-1"},   {"fault", "--duration", "soon"},
    {"fault", "--threads", "0"},       {"fault", "--threads", "65"},
    {"fault", "--pattern", "spiral"},  {"fault", "--access", "look"},
    {"fault", "--seed", "-1"},         {"fault", "--gid-index", "256"},
    {"fault", "--device-port", "256"}, {"fault", "--output", "xml"},
    {"read", "--bytes", "x"},          {"read", "--iterations", "0"},
    {"read", "--duration", "-1s"},     {"read", "--depth", "0"},
    {"read", "--depth", "1025"},       {"read", "--operation", "move"},
    {"ladder", "--iterations", "0"},   {"fault", "--rate", "-1"},
    {"fault", "--rate", "10000001"},   {"scan", "--size", "x"},
    {"scan", "--threads", "65"},       {"evict", "--size", "-4K"},
    {"evict", "--iterations", "0"},    {"evict", "--duration", "1d"},
    {"connect", "--iterations", "0"},  {"connect", "--duration", "1d"},
    {"register", "--iterations", "0"}, {"register", "--duration", "1d"},
    {"control", "--iterations", "0"},  {"control", "--duration", "1d"},
    {"control", "--threads", "0"},     {"fault", "--faults", "kernel"},
};

TEST(BenchSettings, Defect6WrongValuesAreRefusedByTheNameOfTheFlag) {
  for (const Wrong& wrong : kWrong) {
    SCOPED_TRACE(std::string(wrong.subcommand) + " " + wrong.flag + " " + wrong.value);
    const ParsedCommandLine parsed =
        parse_all({"bench", wrong.subcommand, wrong.flag, wrong.value});
    EXPECT_FALSE(parsed.invocation.run);
    EXPECT_EQ(parsed.exit_status, kExitUsage);
    EXPECT_THAT(parsed.problem, HasSubstr(wrong.flag));
  }
}

// Combinations that only the benchmark itself can refuse, before it starts anything.
TEST(BenchSettings, Defect6WrongCombinationsAreRefusedByTheNameOfTheFlag) {
  struct Case {
    Words arguments;
    const char* flag;
  };
  for (const Case& c : {Case{{"scan", "-s", "1K"}, "--size"},
                        {{"evict", "-s", "64M", "--local", "64M"}, "--size"},
                        {{"evict", "-s", "1K"}, "--size"},
                        {{"register", "-s", "2M,"}, "--sizes"},
                        {{"register", "-s", "3M"}, "--sizes"},
                        {{"register", "-s", "2M", "--coordinator", "http://a:1"}, "--sizes"},
                        {{"control", "-n", "3", "--threads", "4"}, "--iterations"},
                        {{"connect", "-D", "25h"}, "--duration"}}) {
    Words arguments = c.arguments;
    arguments.insert(arguments.begin(), "bench");
    const ParsedCommandLine parsed = parse_all(arguments);
    ASSERT_TRUE(parsed.invocation.run) << parsed.problem;
    const Result<int> status = parsed.invocation.run();
    ASSERT_FALSE(status.has_value()) << c.flag;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalid);
    EXPECT_THAT(status.error().context, HasSubstr(c.flag));
  }
}

TEST(BenchSettings, DurationOfZeroIsRefusedWhenItRuns) {
  const ParsedCommandLine parsed = parse_all({"bench", "read", "-D", "0"});
  ASSERT_TRUE(parsed.invocation.run);
  const Result<int> status = parsed.invocation.run();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(status.error().context, HasSubstr("--duration"));
}

TEST(BenchSettings, HelpOfEveryBenchmarkShowsExamples) {
  for (const char* name :
       {"fault", "read", "ladder", "scan", "evict", "connect", "register", "control"}) {
    const ParsedCommandLine help = parse_all({"bench", name, "--help"});
    EXPECT_EQ(help.exit_status, kExitOk) << name;
    EXPECT_THAT(help.output, HasSubstr(std::string("Examples:\n  farpage bench ") + name));
  }
}

}  // namespace
}  // namespace farpage::cli
