#include "cli/run_report.h"

#include <gtest/gtest.h>

namespace farpage::cli {
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

TEST(MemoryUse, CountsPagesThatCameIntoBeingInAllProcesses) {
  TargetReport shell;
  shell.stats.faults_zero = 10;
  shell.stats.budget_pages = 100;
  TargetReport program;
  program.stats.faults_zero = 1000;
  program.stats.zeros_ahead = 500;
  program.stats.evicted_written = 7000;
  program.stats.budget_pages = 200;
  const MemoryUse use = memory_use({shell, program}, 150 * kPageBytes, kGiB);
  EXPECT_EQ(use.far_bytes, 1510 * kPageBytes);
  EXPECT_EQ(use.local_bytes, 200 * kPageBytes);
  EXPECT_EQ(use.peak_bytes, kGiB);
  EXPECT_EQ(memory_use({}, 5, 7).local_bytes, 5U);
}

}  // namespace
}  // namespace farpage::cli
