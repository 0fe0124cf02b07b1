// The budget of a pager changes while it runs.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "rig.h"

namespace farpage::pager {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kPagesOfMiB = kMiB / kPageBytes;

// As the kernel counts.
uint64_t present_pages(Rig& rig) {
  std::vector<unsigned char> states(rig.pages());
  EXPECT_EQ(::mincore(rig.bytes(0), rig.pages() * kPageBytes, states.data()), 0);
  uint64_t present = 0;
  for (const unsigned char state : states) present += state & 1;
  return present;
}

TEST(PagerResize, AShrunkBudgetIsEvictedWithoutAnyFaultAndAGrownOneHoldsMoreAgain) {
  Rig rig({.pages = 64 * kPagesOfMiB, .local_pages = 64 * kPagesOfMiB});
  const uint64_t filled = 60 * kPagesOfMiB;
  for (uint64_t page = 0; page < filled; ++page) fill(rig, page, 1);
  ASSERT_EQ(present_pages(rig), filled);

  ASSERT_TRUE(rig.pager().set_local(16 * kMiB).has_value());
  EXPECT_EQ(rig.stats().budget_pages, 16 * kPagesOfMiB);
  EXPECT_TRUE(comes_true([&] { return present_pages(rig) <= 16 * kPagesOfMiB; }))
      << present_pages(rig);
  EXPECT_EQ(rig.stats().faults_remote, 0U);
  for (uint64_t page = 0; page < filled; ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
  EXPECT_LE(rig.stats().resident_pages, 16 * kPagesOfMiB);

  ASSERT_TRUE(rig.pager().set_local(64 * kMiB).has_value());
  for (uint64_t page = 0; page < filled; ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
  EXPECT_EQ(present_pages(rig), filled);
  EXPECT_EQ(rig.stats().faults_failed, 0U);
  EXPECT_TRUE(comes_true([&] { return rig.pager().check_invariants().has_value(); }));
}

TEST(PagerResize, WhoWaitsForRoomGoesOnWhenTheBudgetGrows) {
  Rig rig({.fault_deadline = Seconds(3600)});
  rig.client().set_slab_limit(1);  // 512 pages can be evicted, the others must stay
  std::thread program([&] {
    for (uint64_t page = 0; page < 3000; ++page) fill(rig, page, 1);
  });
  EXPECT_TRUE(comes_true([&] {
    const PagerStats stats = rig.stats();
    return stats.away_pages == 512 && stats.resident_pages == 1024;
  }));
  ASSERT_TRUE(rig.pager().set_local(16 * kMiB).has_value());
  program.join();
  for (uint64_t page = 0; page < 3000; ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
  EXPECT_EQ(rig.stats().faults_failed, 0U);
}

// A batch takes up to 0.3 s on this wire, so evicting the excess takes longer than the fault
// deadline.
TEST(PagerResize, NoFaultWaitsUntilAllThatIsTooMuchHasLeft) {
  rdma::LoopOptions loop{.seed = 3};
  loop.faults.delay_time = Milliseconds(300);
  Rig rig({.transport = rdma::TransportKind::kLoop,
           .pages = 32 * kPagesOfMiB,
           .local_pages = 32 * kPagesOfMiB,
           .fault_deadline = Seconds(2),
           .loop = loop});
  const uint64_t filled = 30 * kPagesOfMiB;
  for (uint64_t page = 0; page < filled; ++page) fill(rig, page, 1);
  ASSERT_TRUE(rig.pager().set_local(kMiB).has_value());
  for (uint64_t page = filled; page < filled + 300; ++page) {
    ASSERT_FALSE(ends_in_sigbus(rig.page(page), [&] { fill(rig, page, 1); })) << page;
  }
  EXPECT_EQ(rig.stats().faults_failed, 0U);
}

TEST(PagerResize, ManyThreadsSeeTheirOwnLastWritesWhateverTheBudgetIs) {
  constexpr uint64_t kSeed = 20261122;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Rig rig({.transport = rdma::TransportKind::kShm, .prefetch_depth = 16});
  constexpr unsigned kThreads = 3;
  std::atomic<uint64_t> wrong{0};
  std::atomic<unsigned> running{kThreads};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(kSeed + t);
      std::vector<uint64_t> version(rig.pages() / kThreads, 0);
      for (int i = 0; i < 20'000; ++i) {
        const uint64_t own = random() % version.size();
        const uint64_t page = own * kThreads + t;
        if (version[own] != 0 && !holds(rig, page, version[own])) ++wrong;
        if (random() % 2 == 0) fill(rig, page, ++version[own]);
      }
      --running;
    });
  }
  std::mt19937_64 random(kSeed);
  uint64_t changes = 0;
  for (; running > 0; ++changes) {
    ASSERT_TRUE(rig.pager().set_local((1 + random() % 12) * kMiB).has_value());
    std::this_thread::sleep_for(Milliseconds(random() % 20));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(changes, 0U);
  EXPECT_EQ(rig.stats().faults_failed, 0U);
  ASSERT_TRUE(rig.pager().set_local(kMiB).has_value());
  EXPECT_TRUE(comes_true([&] { return present_pages(rig) <= kPagesOfMiB; }));
  EXPECT_TRUE(comes_true([&] { return rig.pager().check_invariants().has_value(); }));
}

TEST(PagerResize, BelowWhatIsPinnedItIsRefusedAndNothingChanges) {
  Rig rig({.local_pages = 4 * kPagesOfMiB});
  for (uint64_t page = 0; page < 700; ++page) fill(rig, page, 1);
  ASSERT_TRUE(rig.pager().pin({PageIndex{0}, 700}));
  const Status refused = rig.pager().set_local(2 * kMiB);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_NE(refused.error().message().find("local: 2.7M are pinned"), std::string::npos)
      << refused.error().message();
  EXPECT_EQ(rig.stats().budget_pages, 4 * kPagesOfMiB);
  EXPECT_EQ(present_pages(rig), 700U);

  rig.pager().unpin({PageIndex{0}, 300});
  ASSERT_TRUE(rig.pager().set_local(2 * kMiB).has_value());
  EXPECT_FALSE(rig.pager().pin({PageIndex{0}, 100}));  // the limit is 435
  EXPECT_TRUE(comes_true([&] { return present_pages(rig) <= 2 * kPagesOfMiB; }));
  for (uint64_t page = 300; page < 700; ++page)
    ASSERT_FALSE(rig.pager().is_away(PageIndex{page})) << page;
  ASSERT_TRUE(rig.pager().set_local(4 * kMiB).has_value());
  EXPECT_TRUE(rig.pager().pin({PageIndex{0}, 300}));
}

TEST(PagerResize, LessThanTheMinimumIsInvalid) {
  Rig rig({});
  const Status refused = rig.pager().set_local(kMinLocalBytes - 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalid);
  EXPECT_NE(refused.error().message().find("local: at least 1M"), std::string::npos);
  EXPECT_TRUE(rig.pager().set_local(kMinLocalBytes).has_value());
}

}  // namespace
}  // namespace farpage::pager
