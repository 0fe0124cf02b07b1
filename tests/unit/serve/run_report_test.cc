#include "serve/run_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace farpage::serve {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;

bool warns(uint64_t local_bytes, uint64_t peak_bytes, uint64_t far_bytes) {
  return !local_memory_warning(
              {.local_bytes = local_bytes, .peak_bytes = peak_bytes, .far_bytes = far_bytes})
              .empty();
}

TEST(LocalMemoryWarning, IsForALargePeakOfWhichNextToNothingIsFar) {
  EXPECT_TRUE(warns(32 * kMiB, 300 * kMiB, 0));
  EXPECT_TRUE(warns(32 * kMiB, 300 * kMiB, 4 * kMiB));
  EXPECT_TRUE(warns(2 * kGiB, 20 * kGiB, kGiB));
}

TEST(LocalMemoryWarning, IsNotForAProgramWithFarMemory) {
  EXPECT_FALSE(warns(32 * kMiB, 300 * kMiB, 300 * kMiB));
  EXPECT_FALSE(warns(32 * kMiB, 300 * kMiB, 32 * kMiB));
  EXPECT_FALSE(warns(kMiB, 160 * kMiB, 10 * kMiB));
}

TEST(LocalMemoryWarning, IsNotForAProgramThatFitsIntoItsBudget) {
  EXPECT_FALSE(warns(kGiB, 300 * kMiB, 0));
  EXPECT_FALSE(warns(32 * kMiB, 30 * kMiB, 0));
  EXPECT_FALSE(warns(32 * kMiB, 32 * kMiB + kMaxUnseenBytes, 0));
  EXPECT_TRUE(warns(32 * kMiB, 32 * kMiB + kMaxUnseenBytes + 1, 0));
}

TEST(LocalMemoryWarning, IsOneLineWithTheNumbersAndTheReasons) {
  const std::string text = local_memory_warning(
      {.local_bytes = 32 * kMiB, .peak_bytes = 310 * kMiB, .far_bytes = 3 * kMiB});
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  for (const char* word : {"up to 310 MiB", "--local 32M", "only 3 MiB", "Go without cgo"})
    EXPECT_NE(text.find(word), std::string::npos) << word << " in " << text;
}

// Reports of ended processes are kept until `run` ends: 10,000 of them must fit in little memory.
static_assert(sizeof(TargetReport) < 1024);

TEST(RunReport, ShowsTheTimesOfAnEndedProcess) {
  pager::PagerStats stats;
  stats.faults_remote = 3;
  stats.evicted_clean = 1;
  for (const uint64_t ns : {10'000, 20'000, 30'000}) stats.fault_ns.record(ns);
  const TargetReport report{
      .program = "sort", .pid = 7, .counts = stats, .latencies = stats.latencies()};
  EXPECT_THAT(format_report({report}),
              testing::ContainsRegex("remote fault +20\\.[01] +30\\.[012]"));
  const auto json = nlohmann::json::parse(json_report({report}, 0));
  const auto& times = json["targets"][0]["latency"]["remote_fault"];
  EXPECT_EQ(times["count"], 3);
  EXPECT_NEAR(times["mean_us"].get<double>(), 20.0, 0.001);
  EXPECT_NEAR(times["p50_us"].get<double>(), 20.0, 0.2);
}

TEST(MemoryUse, CountsPagesThatCameIntoBeingInAllProcesses) {
  TargetReport shell;
  shell.counts.faults_zero = 10;
  shell.counts.budget_pages = 100;
  TargetReport program;
  program.counts.faults_zero = 1000;
  program.counts.zeros_ahead = 500;
  program.counts.evicted_written = 7000;
  program.counts.budget_pages = 200;
  const MemoryUse use = memory_use({shell, program}, 150 * kPageBytes, kGiB);
  EXPECT_EQ(use.far_bytes, 1510 * kPageBytes);
  EXPECT_EQ(use.local_bytes, 200 * kPageBytes);
  EXPECT_EQ(use.peak_bytes, kGiB);
  EXPECT_EQ(memory_use({}, 5, 7).local_bytes, 5U);
}

}  // namespace
}  // namespace farpage::serve
