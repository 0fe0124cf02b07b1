#include "serve/budget_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace farpage::serve {
namespace {

constexpr uint64_t kTotal = 16384;  // 64 MiB

uint64_t sum(const std::vector<uint64_t>& limits) {
  return std::accumulate(limits.begin(), limits.end(), uint64_t{0});
}

// A process that uses up to `wants` pages and faults at `rate` while it may not have them.
struct Process {
  uint64_t wants = 0;
  double rate = 0;
  BudgetMember member;

  void step(uint64_t limit) {
    member.limit = limit;
    member.used = std::min(wants, limit);
    member.faults = wants > limit ? rate : 0;
  }
};

std::vector<uint64_t> divide(const std::vector<Process>& processes) {
  std::vector<BudgetMember> members;
  for (const Process& process : processes) members.push_back(process.member);
  return divide_budget(kTotal, members);
}

void run(std::vector<Process>& processes, int steps) {
  for (int i = 0; i < steps; ++i) {
    const std::vector<uint64_t> limits = divide(processes);
    for (size_t p = 0; p < processes.size(); ++p) processes[p].step(limits[p]);
  }
}

TEST(BudgetShares, OneProcessHasTheWholeBudget) {
  EXPECT_EQ(divide_budget(kTotal, {}), std::vector<uint64_t>{});
  const std::vector<BudgetMember> one{{.limit = 0}};
  EXPECT_EQ(divide_budget(kTotal, one), std::vector<uint64_t>{kTotal});
}

TEST(BudgetShares, AProcessThatNeedsLittleLeavesTheRest) {
  std::vector<Process> processes{{.wants = kFloorPages, .rate = 1},
                                 {.wants = kTotal * 2, .rate = 100}};
  run(processes, 20);
  EXPECT_GE(processes[0].member.limit, kFloorPages);
  EXPECT_GE(processes[1].member.limit, kTotal - 2 * kFloorPages);
}

TEST(BudgetShares, AProcessThatStopsFaultingGivesItsPages) {
  std::vector<Process> processes{{.wants = kTotal, .rate = 100}, {.wants = kTotal, .rate = 100}};
  run(processes, 20);
  EXPECT_GE(processes[0].member.limit, kTotal / 4);
  processes[0].rate = 0;
  run(processes, 60);
  EXPECT_LE(processes[0].member.limit, 2 * kFloorPages);
  EXPECT_GE(processes[1].member.limit, kTotal - 2 * kFloorPages);
}

TEST(BudgetShares, EqualProcessesHaveSharesOfOneSize) {
  std::vector<Process> processes(4, Process{.wants = kTotal, .rate = 50});
  run(processes, 100);
  for (const Process& process : processes) {
    EXPECT_GE(process.member.limit, kTotal / 4 * 9 / 10);
    EXPECT_LE(process.member.limit, kTotal / 4 * 11 / 10);
  }
}

TEST(BudgetShares, AProcessThatFaultsKeepsHalfOfTheEqualShare) {
  std::vector<Process> processes{{.wants = kTotal, .rate = 1}, {.wants = kTotal, .rate = 100'000}};
  run(processes, 200);
  EXPECT_GE(processes[0].member.limit, kTotal / 4);
}

TEST(BudgetShares, ANewProcessGetsRoomFromOneThatHasAll) {
  std::vector<Process> processes{{.wants = kTotal * 2, .rate = 100}};
  run(processes, 5);
  ASSERT_EQ(processes[0].member.limit, kTotal);
  processes.push_back({.wants = kTotal * 2, .rate = 100});
  run(processes, 1);
  EXPECT_GE(processes[1].member.limit, kFloorPages);
  run(processes, 100);
  EXPECT_GE(processes[1].member.limit, kTotal / 4);
}

TEST(BudgetShares, PinnedPagesStayWithinTheLimit) {
  std::vector<Process> processes{{.wants = 8000, .rate = 0}, {.wants = kTotal, .rate = 100}};
  processes[0].member.least = 9000;
  run(processes, 50);
  EXPECT_GE(processes[0].member.limit, 9000U);
  EXPECT_LE(processes[0].member.limit + processes[1].member.limit, kTotal);
}

TEST(BudgetShares, APageIsGrantedOnlyAfterItsEviction) {
  // The first one is told to give pages, and evicts nothing.
  std::vector<BudgetMember> members{{.limit = kTotal, .used = kTotal, .faults = 0},
                                    {.limit = kFloorPages, .used = kFloorPages, .faults = 100}};
  members[0].limit -= kFloorPages;
  members[0].used -= kFloorPages;
  for (int i = 0; i < 50; ++i) {
    const std::vector<uint64_t> limits = divide_budget(kTotal, members);
    EXPECT_EQ(limits[1], kFloorPages);
    members[0].limit = limits[0];
  }
  EXPECT_LT(members[0].limit, kTotal / 2);
  members[0].used = members[0].limit;  // it has
  EXPECT_GT(divide_budget(kTotal, members)[1], kTotal / 2 - kFloorPages);
}

TEST(BudgetShares, TheLimitsNeverExceedTheBudget) {
  std::mt19937 random(7);
  for (int seed = 0; seed < 200; ++seed) {
    std::vector<Process> processes;
    for (int step = 0; step < 100; ++step) {
      if (random() % 8 == 0 && processes.size() < 100)
        processes.push_back({.wants = random() % (2 * kTotal), .rate = double(random() % 100)});
      if (random() % 16 == 0 && !processes.empty())
        processes.erase(processes.begin() + random() % processes.size());
      if (processes.empty()) continue;
      Process& changed = processes[random() % processes.size()];
      changed.wants = random() % (2 * kTotal);
      changed.rate = double(random() % 100);
      run(processes, 1);
      uint64_t limits = 0;
      for (const Process& process : processes) {
        limits += process.member.limit;
        EXPECT_GE(process.member.limit, 16U);
      }
      // One process alone has all; the second one's floor is taken from it at once.
      ASSERT_LE(limits, kTotal) << "seed " << seed << " step " << step;
    }
  }
}

TEST(BudgetShares, ASmallerTotalIsFittedAtOnce) {
  const std::vector<BudgetMember> members{{.limit = 10000, .used = 10000, .faults = 3},
                                          {.limit = 6000, .used = 6000, .faults = 3}};
  EXPECT_LE(sum(divide_budget(4096, members)), 4096U);
}

TEST(BudgetShares, FloorsShrinkWhereThereIsNoRoomForThem) {
  std::vector<BudgetMember> members(200, BudgetMember{});
  const std::vector<uint64_t> limits = divide_budget(8192, members);
  EXPECT_LE(sum(limits), 8192U);
  EXPECT_GE(*std::ranges::min_element(limits), 16U);
}

}  // namespace
}  // namespace farpage::serve
