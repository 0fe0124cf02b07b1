// The pager on a real userfaultfd window of this process, over each transport that needs no
// hardware.
#include "pager/pager.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "interrupted_space.h"
#include "rdma/limits.h"
#include "rig.h"

namespace farpage::pager {
namespace {

using rdma::TransportKind;

class PagerOver : public testing::TestWithParam<TransportKind> {};

INSTANTIATE_TEST_SUITE_P(Wires, PagerOver,
                         testing::Values(TransportKind::kTcp, TransportKind::kShm,
                                         TransportKind::kLoop),
                         [](const auto& wire) { return std::string(to_string(wire.param)); });

TEST_P(PagerOver, NeverWrittenPagesReadAsZerosAndCostNothingRemote) {
  Rig rig({.transport = GetParam()});
  for (uint64_t page = 0; page < rig.pages(); ++page) ASSERT_EQ(*rig.page(page), 0U) << page;
  EXPECT_EQ(rig.stats().writes, 0U);
  EXPECT_TRUE(comes_true([&] { return rig.stats().faults_zero == rig.pages(); }));
}

TEST_P(PagerOver, EveryByteComesBackAfterEviction) {
  Rig rig({.transport = GetParam()});
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  for (uint64_t page = 0; page < rig.pages(); ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
  const PagerStats stats = rig.stats();
  EXPECT_GE(stats.evicted_written, rig.pages() - 1024);
  EXPECT_GE(stats.faults_remote + stats.prefetch_pages, rig.pages() - 1024);
  EXPECT_LE(stats.resident_pages, 1024U);
  EXPECT_EQ(stats.faults_failed, 0U);
}

// Each page is one WRITE to each node, and a channel accepts three at a time.
TEST_P(PagerOver, ScatteredPagesLeaveOverChannelsThatTakeAFewAtOnce) {
  Rig rig({.transport = GetParam(), .replicas = 2, .nodes = 2, .operations_in_flight = 3});
  for (uint64_t page = 0; page < rig.pages(); page += 2) fill(rig, page, 1);
  for (uint64_t page = 0; page < rig.pages(); page += 2) ASSERT_TRUE(holds(rig, page, 1)) << page;
  const PagerStats stats = rig.stats();
  EXPECT_GE(stats.writes, 2 * stats.evicted_written);
  EXPECT_GE(stats.evicted_written, rig.pages() / 2 - 1024);
  EXPECT_EQ(stats.write_failures, 0U);
  EXPECT_EQ(stats.faults_failed, 0U);
  EXPECT_TRUE(comes_true([&] { return rig.pager().check_invariants().has_value(); }));
}

// 128 WRITEs, more than one post, to a channel that breaks at the first.
TEST_P(PagerOver, ScatteredPagesStayWhenTheirNodeDiesBeforeTheyAreSent) {
  Rig rig({.transport = GetParam(), .local_pages = 4096});
  for (uint64_t page = 0; page < rig.pages(); page += 2) fill(rig, page, 1);
  const uint64_t slabs = rig.pages() * kPageBytes / kTestSlabBytes;
  ASSERT_TRUE(comes_true([&] { return rig.stats().leased_slabs == slabs; }));
  rig.pager().hint_cold({PageIndex{0}, 256});
  ASSERT_TRUE(comes_true([&] { return rig.stats().away_pages == 128; }));
  rig.node(0).kill();
  rig.pager().hint_cold({PageIndex{256}, 256});
  ASSERT_TRUE(comes_true([&] { return rig.stats().channels_broken > 0; }));
  for (uint64_t page = 256; page < rig.pages(); page += 2) ASSERT_TRUE(holds(rig, page, 1)) << page;
  EXPECT_TRUE(comes_true([&] { return rig.pager().check_invariants().has_value(); }));
}

// One in eight victims is dirty, and its node does not answer before the deadline.
TEST_P(PagerOver, UnchangedPagesMakeRoomWhileADeadNodeIsWaitedFor) {
  Rig rig({.transport = GetParam(), .fault_deadline = Seconds(3600)});
  constexpr uint64_t kFresh = 3584;  // up to the end: one slab, of which one page is written first
  for (uint64_t page = 0; page <= kFresh; ++page) fill(rig, page, 1);
  ASSERT_TRUE(comes_true([&] { return rig.stats().leased_slabs == rig.pages() / 512; }));
  // Backwards: all dirty pages are evicted, and the first 900 are resident at the end.
  for (uint64_t page = kFresh; page-- > 0;) ASSERT_TRUE(holds(rig, page, 1)) << page;
  // With more room, nothing is written: a WRITE that the end of a node meets may be refused, and
  // then all pages of its slab stay.
  ASSERT_TRUE(rig.pager().set_local(rig.pages() * kPageBytes).has_value());
  for (uint64_t page = 0; page < 900; page += 8) fill(rig, page, 2);
  rig.node(0).kill();
  ASSERT_TRUE(rig.pager().set_local(1024 * kPageBytes).has_value());
  for (uint64_t page = kFresh + 1; page < rig.pages(); ++page) fill(rig, page, 1);
  for (uint64_t page = kFresh + 1; page < rig.pages(); ++page)
    ASSERT_TRUE(holds(rig, page, 1)) << page;
  EXPECT_EQ(rig.stats().faults_failed, 0U);
}

TEST_P(PagerOver, RandomReadsAndWritesOfManyThreadsSeeTheirOwnLastWrites) {
  constexpr uint64_t kSeed = 20261121;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Rig rig({.transport = GetParam(), .prefetch_depth = 16});
  constexpr unsigned kThreads = 4;
  std::atomic<uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(kSeed + t);
      const uint64_t mine = rig.pages() / kThreads;  // each thread has its own pages, interleaved
      std::vector<uint64_t> version(mine, 0);
      for (int i = 0; i < 20'000; ++i) {
        const uint64_t own = random() % mine;
        const uint64_t page = own * kThreads + t;
        if (version[own] != 0 && !holds(rig, page, version[own])) ++wrong;
        if (version[own] == 0 && *rig.page(page) != 0) ++wrong;
        if (random() % 2 == 0) fill(rig, page, ++version[own]);
      }
      for (uint64_t own = 0; own < mine; ++own)
        if (version[own] != 0 && !holds(rig, own * kThreads + t, version[own])) ++wrong;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(rig.stats().faults_remote, 1000U);
}

TEST_P(PagerOver, CleanPagesAreDroppedWithoutBeingSentAgain) {
  Rig rig({.transport = GetParam()});
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  for (uint64_t page = 0; page < 3000; ++page) ASSERT_TRUE(holds(rig, page, 1));
  const PagerStats before = rig.stats();
  for (uint64_t round = 0; round < 2; ++round)
    for (uint64_t page = 0; page < 3000; ++page) ASSERT_TRUE(holds(rig, page, 1));
  const PagerStats after = rig.stats();
  EXPECT_GT(after.evicted_clean - before.evicted_clean, 3000U);
  EXPECT_LT(after.evicted_written - before.evicted_written, 1100U);  // what was dirty at the start
}

TEST_P(PagerOver, KernelReadsAndWritesWork) {
  Rig rig({.transport = GetParam()});
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  for (uint64_t page = 0; page < 64; ++page) {
    // write(2) reads far memory, read(2) writes it: the kernel's own faults.
    ASSERT_EQ(::write(pipes[1], rig.bytes(page), kPageBytes), ssize_t{kPageBytes});
    ASSERT_EQ(::read(pipes[0], rig.bytes(page + 2048), kPageBytes), ssize_t{kPageBytes});
    ASSERT_EQ(std::memcmp(rig.bytes(page), rig.bytes(page + 2048), kPageBytes), 0);
  }
  ::close(pipes[0]);
  ::close(pipes[1]);
}

TEST_P(PagerOver, DiscardedPagesReadAsZeros) {
  Rig rig({.transport = GetParam()});
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  rig.pager().discard({PageIndex{100}, 3000});
  uffd::DropResult result;
  const uffd::PageRun run{PageIndex{100}, 3000};
  ASSERT_TRUE(rig.pager().space().drop({&run, 1}, {&result, 1}, Seconds(1)).has_value());
  for (uint64_t page = 0; page < rig.pages(); ++page) {
    if (page >= 100 && page < 3100) {
      ASSERT_EQ(*rig.page(page), 0U) << page;
    } else {
      ASSERT_TRUE(holds(rig, page, 1)) << page;
    }
  }
}

TEST_P(PagerOver, BudgetAndTableAgreeWhenAllIsQuiet) {
  Rig rig({.transport = GetParam(), .prefetch_depth = 32});
  std::mt19937_64 random(7);
  for (int i = 0; i < 20'000; ++i) fill(rig, random() % rig.pages(), 1);
  EXPECT_TRUE(comes_true([&] { return rig.pager().check_invariants().has_value(); }))
      << rig.pager().check_invariants().error().message();
}

TEST_P(PagerOver, Defect10LostOnlyNodeEndsInSigbusWithinTheDeadline) {
  Rig rig({.transport = GetParam(), .fault_deadline = Milliseconds(1500)});
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  rig.node(0).kill();
  const Instant start = SteadyClock::read();
  EXPECT_TRUE(ends_in_sigbus(rig.page(0)));
  EXPECT_LT(SteadyClock::read() - start, Seconds(10));
  EXPECT_GE(rig.stats().faults_failed, 1U);
}

TEST_P(PagerOver, RestartedNodeIsNeverReadAsIfItHadThePages) {
  Rig rig({.transport = GetParam(), .fault_deadline = Milliseconds(1500)});
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  rig.node(0).restart();
  EXPECT_TRUE(ends_in_sigbus(rig.page(1)));
}

TEST_P(PagerOver, RevokedLeaseEndsInSigbusNotInZeros) {
  Rig rig({.transport = GetParam()});
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  rig.node(0).revoke_all();
  EXPECT_TRUE(ends_in_sigbus(rig.page(2)));
}

TEST_P(PagerOver, RevokedLeaseTakesNothingFromTheOtherSlabs) {
  Rig rig({.transport = GetParam()});
  constexpr uint64_t kSlabPages = kTestSlabBytes / kPageBytes;
  constexpr uint64_t kRevoked = 2;
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  rig.node(0).revoke(SlabIndex{kRevoked});
  uint64_t lost = 0;
  for (uint64_t i = 0; i < rig.pages(); ++i) {
    // Of the revoked slab and of another one, alternately.
    const uint64_t other = (kRevoked + 1) * kSlabPages + i % (rig.pages() - kSlabPages);
    if (i < kSlabPages) lost += ends_in_sigbus(rig.page(kRevoked * kSlabPages + i)) ? 1 : 0;
    ASSERT_TRUE(holds(rig, other % rig.pages(), 1)) << other % rig.pages();
  }
  EXPECT_GT(lost, 10 * rdma::kMaxUnknownKeys);
  EXPECT_EQ(rig.stats().faults_failed, lost);
}

TEST_P(PagerOver, TwoReplicasSurviveTheLossOfOneNode) {
  Rig rig({.transport = GetParam(), .replicas = 2, .nodes = 2});
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  rig.node(1).kill();
  for (uint64_t page = 0; page < rig.pages(); ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 2);
  for (uint64_t page = 0; page < rig.pages(); ++page) ASSERT_TRUE(holds(rig, page, 2)) << page;
  EXPECT_EQ(rig.stats().faults_failed, 0U);
  EXPECT_GT(rig.stats().replicas_lost, 0U);
}

// Accepts every connection, and acknowledges nothing.
class StalledReplica : public testing::TestWithParam<RigOptions> {};

INSTANTIATE_TEST_SUITE_P(Timeouts, StalledReplica,
                         testing::Values(RigOptions{.operation_timeout = Milliseconds(500)},
                                         RigOptions{.operation_timeout = Milliseconds(1000)},
                                         RigOptions{.fault_deadline = Seconds(20),
                                                    .operation_timeout = Milliseconds(500)}),
                         [](const auto& options) {
                           return "After" +
                                  std::to_string(options.param.operation_timeout.count()) + "Of" +
                                  std::to_string(options.param.fault_deadline.count());
                         });

TEST_P(StalledReplica, IsGivenUpAndTheOtherOneIsUsed) {
  RigOptions options = GetParam();
  options.transport = TransportKind::kLoop;
  options.replicas = 2;
  options.nodes = 2;
  Rig rig(options);
  for (uint64_t page = 0; page < 512; ++page) fill(rig, page, 1);
  ASSERT_TRUE(comes_true([&] { return rig.stats().leased_slabs >= 1; }));
  rig.loop().set_stalled("n2", true);
  for (uint64_t page = 512; page < rig.pages(); ++page) fill(rig, page, 1);
  for (uint64_t page = 0; page < rig.pages(); ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
  EXPECT_EQ(rig.stats().faults_failed, 0U);
  EXPECT_GT(rig.stats().replicas_lost, 0U);
}

TEST_P(PagerOver, DeadCoordinatorDoesNothingToTheProgram) {
  Rig rig({.transport = GetParam()});
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  rig.client().set_down(true);
  for (uint64_t page = 0; page < rig.pages(); ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 2);
  for (uint64_t page = 0; page < rig.pages(); ++page) ASSERT_TRUE(holds(rig, page, 2)) << page;
}

TEST(Pager, OpensAlthoughTheCoordinatorIsKilledWhileItAnswers) {
  Rig rig({.broken_calls = 3});
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  for (uint64_t page = 0; page < rig.pages(); ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
}

TEST_P(PagerOver, SequentialReadsArePrefetched) {
  Rig rig({.transport = GetParam(), .prefetch_depth = 32});
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  const PagerStats before = rig.stats();
  for (uint64_t page = 0; page < 2500; ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
  const PagerStats after = rig.stats();
  EXPECT_GT(after.prefetch_pages - before.prefetch_pages, 1000U);
  EXPECT_LT(after.faults_remote - before.faults_remote, 1500U);
}

TEST_P(PagerOver, FreshMemoryIsThereBeforeAWalkMeetsIt) {
  Rig rig({.transport = GetParam(), .local_pages = 4096, .prefetch_depth = 32});
  for (uint64_t page = 0; page < 1000; ++page) {
    ASSERT_EQ(*rig.page(page), 0U) << page;  // a walk of reads
  }
  EXPECT_TRUE(comes_true([&] {
    const PagerStats stats = rig.stats();
    return stats.faults_zero < 300 && stats.zeros_ahead > 700 &&
           stats.faults_zero + stats.zeros_ahead == stats.resident_pages;
  }));
  for (uint64_t page = 2000; page < 3000; ++page) fill(rig, page, 1);  // and one of writes
  EXPECT_TRUE(comes_true([&] { return rig.stats().faults_zero < 600; }));
  for (uint64_t page = 0; page < rig.pages(); ++page) {
    if (page >= 2000 && page < 3000) {
      ASSERT_TRUE(holds(rig, page, 1)) << page;
    } else {
      ASSERT_EQ(*rig.page(page), 0U) << page;
    }
  }
  EXPECT_TRUE(comes_true([&] { return rig.pager().check_invariants().has_value(); }));
}

TEST_P(PagerOver, WalksThroughFreshMemoryOfManyThreadsStayWithinTheBudget) {
  Rig rig({.transport = GetParam(), .prefetch_depth = 32});
  constexpr uint64_t kThreads = 4;
  std::atomic<uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      // All threads walk over each page, and each writes one word of it.
      for (uint64_t page = 0; page < rig.pages(); ++page) {
        if (rig.page(page)[t] != 0) ++wrong;
        rig.page(page)[t] = content(page, t);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(rig.stats().resident_pages, 1024U);
  for (uint64_t page = 0; page < rig.pages(); ++page)
    for (uint64_t t = 0; t < kThreads; ++t)
      if (rig.page(page)[t] != content(page, t)) ++wrong;
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(rig.stats().zeros_ahead, 0U);
  EXPECT_TRUE(comes_true([&] { return rig.pager().check_invariants().has_value(); }));
}

TEST(Pager, ARunOfZerosThatIsInterruptedIsPlacedInPart) {
  InterruptedSpace* space = nullptr;
  RigOptions options = interruptible(space);
  options.local_pages = 4096;
  options.prefetch_depth = 32;
  Rig rig(options);
  for (uint64_t page = 0; page < 400; ++page) {
    if (page % 50 == 20) space->zero_half_of_next_run();
    if (page < 200) {
      ASSERT_EQ(*rig.page(page), 0U) << page;
    } else {
      fill(rig, page, 1);
    }
  }
  EXPECT_TRUE(comes_true([&] {
    const PagerStats stats = rig.stats();
    return stats.resident_pages >= 400 &&
           stats.resident_pages == stats.faults_zero + stats.zeros_ahead;
  }));
  EXPECT_TRUE(comes_true([&] { return rig.pager().check_invariants().has_value(); }));
  EXPECT_TRUE(comes_true([&] {
    rig.pager().hint_cold({PageIndex{0}, 500});
    return rig.stats().resident_pages == 0;
  }));
  for (uint64_t page = 0; page < 200; ++page) ASSERT_EQ(*rig.page(page), 0U) << page;
  for (uint64_t page = 200; page < 400; ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
}

class FreshWalkOf : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Steps, FreshWalkOf, testing::Values(1, -1),
                         [](const auto& step) { return step.param > 0 ? "Up" : "Down"; });

// Behind it lies other memory, in which no page is installed: PROT_NONE, and a mapping of the
// target's own.
TEST_P(FreshWalkOf, FreshMemoryEndsWithItsMapping) {
  for (const bool closed : {true, false}) {
    Rig rig({.local_pages = 4096, .prefetch_depth = 32});
    constexpr uint64_t kFirst = 500;
    constexpr uint64_t kPages = 1003;
    const auto close = [&](uint64_t first) {
      if (closed) {
        ASSERT_EQ(::mprotect(rig.bytes(first), 100 * kPageBytes, PROT_NONE), 0);
      } else {
        ASSERT_NE(::mmap(rig.bytes(first), 100 * kPageBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
                  MAP_FAILED);
      }
    };
    close(kFirst - 100);
    close(kFirst + kPages);
    const auto page = [&](uint64_t i) {
      return GetParam() > 0 ? kFirst + i : kFirst + kPages - 1 - i;
    };
    for (uint64_t i = 0; i < kPages; ++i) fill(rig, page(i), 1);
    for (uint64_t i = 0; i < kPages; ++i) ASSERT_TRUE(holds(rig, page(i), 1)) << i;
    EXPECT_TRUE(comes_true([&] { return rig.stats().zeros_ahead > kPages * 3 / 4; }));
    EXPECT_TRUE(comes_true([&] { return rig.stats().resident_pages == kPages; }));
    EXPECT_TRUE(comes_true([&] { return rig.pager().check_invariants().has_value(); }));
  }
}

// One thread discards pages that another one reaches on its walk at the same time.
TEST_P(PagerOver, WalksIntoMemoryThatIsGivenUpSeeZerosOrTheirOwnWrites) {
  Rig rig({.transport = GetParam(), .local_pages = 4096, .prefetch_depth = 32});
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0};
  std::atomic<uint64_t> given{0};  // rounds
  std::thread giver([&] {
    // Odd runs of 16 pages are used and discarded repeatedly.
    for (uint64_t round = 1; !stop; ++round, ++given) {
      for (uint64_t run = 1; run < 64; run += 2) {
        const uffd::PageRun pages{PageIndex{run * 16}, 16};
        for (uint64_t page = run * 16; page < run * 16 + 16; ++page) {
          if (*rig.page(page) != 0) ++wrong;
          *rig.page(page) = round;
        }
        rig.pager().discard(pages);
        if (::madvise(rig.bytes(run * 16), 16 * kPageBytes, MADV_DONTNEED) != 0) ++wrong;
      }
    }
  });
  EXPECT_TRUE(comes_true([&] { return given > 0; }));
  for (uint64_t round = 1; round <= 60; ++round) {
    // Even runs are walked through, up to the odd ones.
    for (uint64_t run = 0; run < 64; run += 2) {
      for (uint64_t page = run * 16; page < run * 16 + 16; ++page) {
        if (*rig.page(page) != 0) ++wrong;
        *rig.page(page) = content(page, round);
      }
    }
    rig.pager().hint_cold({PageIndex{0}, 1024});
    for (uint64_t run = 0; run < 64; run += 2) {
      for (uint64_t page = run * 16; page < run * 16 + 16; ++page)
        if (*rig.page(page) != content(page, round)) ++wrong;
      rig.pager().discard({PageIndex{run * 16}, 16});
      if (::madvise(rig.bytes(run * 16), 16 * kPageBytes, MADV_DONTNEED) != 0) ++wrong;
    }
  }
  stop = true;
  giver.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(rig.stats().zeros_ahead, 1000U);
  EXPECT_EQ(rig.stats().faults_failed, 0U);
  EXPECT_TRUE(comes_true([&] { return rig.pager().check_invariants().has_value(); }));
}

TEST(Pager, BudgetFullAndNothingToBorrowEndsInSigbusNotInAHang) {
  Rig rig({.fault_deadline = Milliseconds(500)});
  rig.client().set_slab_limit(1);  // one slab of 512 pages for all
  bool failed = false;
  for (uint64_t page = 0; page < rig.pages() && !failed; ++page) {
    failed = ends_in_sigbus(rig.page(page), [&] { fill(rig, page, 1); });
  }
  EXPECT_TRUE(failed);
  EXPECT_LE(rig.stats().resident_pages, 1024U);
}

// The thread that gives memory back waits until its event is read, and eviction with it.
TEST(Pager, FaultsThatCannotBeAnsweredKeepNoEventUnread) {
  constexpr uint64_t kThreads = 150;  // each fault waits for room
  Rig rig({.slab_limit = 1, .on_full = OnFull::kWait, .fault_deadline = Seconds(3600)});
  constexpr uint64_t kFirst = 512;           // behind the only slab
  constexpr uint64_t kNext = kFirst + 1024;  // behind the budget
  for (uint64_t page = kFirst; page < kNext; ++page) fill(rig, page, 1);
  std::atomic<uint64_t> over{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      fill(rig, kNext + t, 1);
      ++over;
    });
  EXPECT_TRUE(comes_true([&] { return rig.stats().faults_waited_room >= kThreads / 2; }));
  std::atomic<bool> is_unmapped{false};
  std::thread unmapping([&] {
    EXPECT_EQ(::munmap(rig.bytes(rig.pages() - 1), kPageBytes), 0);
    is_unmapped = true;
  });
  EXPECT_TRUE(comes_true([&] { return is_unmapped.load(); }));
  EXPECT_EQ(over, 0U);
  EXPECT_TRUE(comes_true([&] { return rig.stats().faults_waited_room >= kThreads; }));
  rig.client().set_slab_limit(1U << 16);
  for (std::thread& thread : threads) thread.join();
  unmapping.join();
  for (uint64_t page = kFirst; page < kNext + kThreads; ++page)
    ASSERT_TRUE(holds(rig, page, 1)) << page;
  EXPECT_EQ(rig.stats().faults_failed, 0U);
}

TEST(Pager, AWishToEvictOutlastsTheWaitForASlab) {
  Rig rig({});
  rig.client().set_slab_limit(1);
  constexpr uint64_t kFirst = 500;  // twelve pages of the first slab, 88 of the next one
  for (uint64_t page = kFirst; page < kFirst + 100; ++page) fill(rig, page, 1);
  // A hint for a page that is not in the table yet is dropped.
  for (uint64_t page = kFirst; page < kFirst + 100; ++page)
    ASSERT_TRUE(comes_true([&] { return !rig.pager().next_fault(PageIndex{page}, true); }));
  rig.pager().hint_cold({PageIndex{kFirst}, 100});
  ASSERT_TRUE(comes_true([&] { return rig.stats().away_pages == 12; }));
  rig.client().set_slab_limit(2);
  EXPECT_TRUE(comes_true([&] { return rig.stats().away_pages == 100; }));
  for (uint64_t page = kFirst; page < kFirst + 100; ++page) ASSERT_TRUE(holds(rig, page, 1));
}

TEST(Pager, PagesThatAreNeededAfterAllAreNotEvicted) {
  for (const bool in_thread : {false, true}) {
    Rig rig({.resolve_in_thread = in_thread, .fault_deadline = Seconds(3600)});
    for (uint64_t page = 0; page < 200; ++page) {
      if (in_thread) rig.pager().resolve(PageIndex{page}, uffd::FaultKind::kMissingWrite);
      fill(rig, page, 1);
    }
    ASSERT_TRUE(comes_true([&] { return rig.stats().faults_zero == 200; }));
    ASSERT_TRUE(rig.pager().begin_fork());  // pauses eviction
    rig.pager().hint_cold({PageIndex{0}, 100});
    rig.pager().hint_cold({PageIndex{100}, 100});
    rig.pager().hint_willneed({PageIndex{0}, 100});
    rig.pager().end_fork(false);
    EXPECT_TRUE(comes_true([&] { return rig.stats().evicted_written == 100; }));
    for (uint64_t page = 0; page < 200; ++page)
      EXPECT_EQ(rig.pager().is_away(PageIndex{page}), page >= 100) << page;
  }
}

TEST(Pager, ForkIsAllowedOnlyWhileNothingIsAway) {
  Rig rig({});
  for (uint64_t page = 0; page < 100; ++page) fill(rig, page, 1);
  EXPECT_TRUE(rig.pager().begin_fork());
  rig.pager().end_fork(true);
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  EXPECT_FALSE(rig.pager().begin_fork());
  for (uint64_t page = 0; page < rig.pages(); ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
}

TEST(Pager, ForkPullsInAllThatIsAwayPastTheBudgetWhenAsked) {
  Rig rig({.fork = ForkMode::kPullIn});
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  ASSERT_GT(rig.stats().away_pages, 1000U);
  EXPECT_TRUE(rig.pager().begin_fork());
  EXPECT_EQ(rig.stats().away_pages, 0U);
  EXPECT_EQ(rig.stats().resident_pages, rig.pages());
  rig.pager().end_fork(true);
  for (uint64_t page = 0; page < rig.pages(); ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
}

TEST(Pager, NoFaultWaitsForRoomWhileAForkIsUnderWay) {
  Rig rig({});
  for (uint64_t page = 0; page < 500; ++page) fill(rig, page, 1);
  ASSERT_TRUE(rig.pager().begin_fork());
  for (uint64_t page = 500; page < rig.pages(); ++page) fill(rig, page, 1);  // four budgets
  EXPECT_EQ(rig.stats().resident_pages, rig.pages());
  rig.pager().end_fork(true);
  for (uint64_t page = 0; page < rig.pages(); ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
}

TEST(Pager, Defect4FaultsInFlightTogetherEachGetTheirOwnBytes) {
  rdma::LoopOptions loop{.seed = 5};
  loop.faults = {.delay_polls = 40, .reorder = true};
  Rig rig({.transport = TransportKind::kLoop, .workers = 1, .loop = loop});
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  constexpr uint64_t kThreads = 16;  // one worker: they share its fetches
  std::atomic<uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t page = t; page < 2048; page += kThreads) wrong += holds(rig, page, 1) ? 0 : 1;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
}

TEST(Pager, LossReorderAndErrorsOfTheWireLoseNoPage) {
  rdma::LoopOptions loop{.seed = 99};
  loop.faults = {.delay_polls = 5,
                 .lost_per_mille = 1,
                 .failed_per_mille = 5,
                 .failed_status = rdma::CompletionStatus::kPeerGone,
                 .reorder = true};
  Rig rig({.transport = TransportKind::kLoop, .fault_deadline = Seconds(20), .loop = loop});
  for (uint64_t page = 0; page < rig.pages(); ++page) fill(rig, page, 1);
  for (uint64_t page = 0; page < rig.pages(); ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
  EXPECT_GT(rig.stats().retries, 0U);
  EXPECT_EQ(rig.stats().faults_failed, 0U);
}

TEST(Pager, AWireThatCarriesAFewPagesAtOnceGetsThemInSmallParts) {
  rdma::LoopOptions loop;
  loop.faults.write_bytes_at_once = 16 * kPageBytes;
  Rig rig({.transport = TransportKind::kLoop, .fault_deadline = Seconds(20), .loop = loop});
  constexpr uint64_t kCold = 256;  // called cold at once, so that one batch sends more than 16
  for (uint64_t page = 0; page < kCold; ++page) fill(rig, page, 1);
  for (uint64_t page = 0; page < kCold; ++page)
    ASSERT_TRUE(comes_true([&] { return !rig.pager().next_fault(PageIndex{page}, true); }));
  rig.pager().hint_cold({PageIndex{0}, kCold});
  ASSERT_TRUE(comes_true([&] { return rig.stats().away_pages == kCold; }));
  EXPECT_GT(rig.stats().write_failures, 0U);
  for (uint64_t page = kCold; page < rig.pages(); ++page) fill(rig, page, 1);
  for (uint64_t page = 0; page < rig.pages(); ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
  EXPECT_EQ(rig.stats().faults_failed, 0U);
}

// One page in 50 ms, so a full batch takes longer than the fault deadline: acknowledged pages make
// room earlier.
TEST(Pager, WhoWaitsForRoomDoesNotWaitForASlowBatchToEnd) {
  rdma::LoopOptions loop;
  loop.faults.write_bytes_at_once = kPageBytes;
  loop.faults.delay_time = Milliseconds(100);
  Rig rig({.transport = TransportKind::kLoop,
           .local_pages = 512,
           .fault_deadline = Seconds(10),
           .loop = loop});
  for (uint64_t page = 0; page < 516; ++page) fill(rig, page, 1);
  EXPECT_EQ(rig.stats().faults_failed, 0U);
  for (uint64_t page = 0; page < 516; ++page) ASSERT_TRUE(holds(rig, page, 1)) << page;
  EXPECT_EQ(rig.stats().faults_failed, 0U);
}

}  // namespace
}  // namespace farpage::pager
