#include "kv/options.h"

#include <gtest/gtest.h>

namespace kv {
namespace {

TEST(KvOptions, SizesHaveUnits) {
  EXPECT_EQ(parse_size("4096"), 4096U);
  EXPECT_EQ(parse_size("64K"), 64U << 10);
  EXPECT_EQ(parse_size("2G"), uint64_t{2} << 30);
  for (const char* wrong : {"", "K", "-1", "1X", "1KB", "99999999999999999999", "17179869184T"})
    EXPECT_FALSE(parse_size(wrong)) << wrong;
}

TEST(KvOptions, EveryOptionOfTheBenchIsTaken) {
  const auto parsed = parse_options(
      {"bench",   "--coordinator", "http://h:1", "--transport", "shm,tcp", "--replicas",
       "2",       "--faults",      "handler",    "--local",     "8M",      "--size",
       "1G",      "--slab",        "2M",         "--values",    "10",      "--value-bytes",
       "100-64K", "--reads",       "7",          "--threads",   "2",       "--seed",
       "9",       "--output",      "json"});
  ASSERT_TRUE(parsed.options) << parsed.problem;
  const Options& options = *parsed.options;
  EXPECT_EQ(options.command, Options::Command::kBench);
  EXPECT_EQ(options.region.coordinator, "http://h:1");
  EXPECT_EQ(options.region.transport, "shm,tcp");
  EXPECT_EQ(options.region.replicas, 2U);
  EXPECT_TRUE(options.region.resolve_in_handler);
  EXPECT_EQ(options.region.local_bytes, 8U << 20);
  EXPECT_EQ(options.region.bytes, 1U << 30);
  EXPECT_EQ(options.region.slab_bytes, 2U << 20);
  EXPECT_EQ(options.bench.values, 10U);
  EXPECT_EQ(options.bench.min_value_bytes, 100U);
  EXPECT_EQ(options.bench.max_value_bytes, 64U << 10);
  EXPECT_EQ(options.bench.reads, 7U);
  EXPECT_EQ(options.bench.threads, 2U);
  EXPECT_EQ(options.bench.seed, 9U);
  EXPECT_TRUE(options.json);
}

TEST(KvOptions, WhatIsWrongIsNamed) {
  struct Case {
    std::vector<std::string> arguments;
    std::string named;
  };
  for (const Case& wrong :
       std::vector<Case>{{{"fly"}, "'fly'"},
                         {{"bench", "--speed", "1"}, "'--speed'"},
                         {{"bench", "--local"}, "--local"},
                         {{"bench", "--local", "much"}, "--local"},
                         {{"bench", "--size", "-1"}, "--size"},
                         {{"bench", "--slab", "2X"}, "--slab"},
                         {{"bench", "--coordinator", ""}, "--coordinator"},
                         {{"bench", "--transport", ""}, "--transport"},
                         {{"bench", "--token-file", "/no/such/file"}, "--token-file"},
                         {{"bench", "--replicas", "4"}, "--replicas"},
                         {{"bench", "--faults", "nobody"}, "--faults"},
                         {{"bench", "--values", "0"}, "--values"},
                         {{"bench", "--value-bytes", "15"}, "--value-bytes"},
                         {{"bench", "--value-bytes", "64K-1K"}, "--value-bytes"},
                         {{"bench", "--value-bytes", "65M"}, "--value-bytes"},
                         {{"bench", "--reads", "x"}, "--reads"},
                         {{"bench", "--threads", "65"}, "--threads"},
                         {{"bench", "--values", "1", "--threads", "2"}, "--values"},
                         {{"bench", "--seed", "1.5"}, "--seed"},
                         {{"bench", "--output", "xml"}, "--output"}}) {
    const auto parsed = parse_options(wrong.arguments);
    EXPECT_FALSE(parsed.options) << wrong.named;
    EXPECT_NE(parsed.problem.find(wrong.named), std::string::npos) << parsed.problem;
  }
}

TEST(KvOptions, HelpNamesEveryOption) {
  for (const char* option :
       {"--coordinator", "--token-file", "--local", "--value-bytes", "--output"})
    EXPECT_NE(usage().find(option), std::string::npos) << option;
  EXPECT_EQ(parse_options({}).options->command, Options::Command::kHelp);
}

}  // namespace
}  // namespace kv
