// Several targets of one engine.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "rig.h"

namespace farpage::pager {
namespace {

constexpr uint64_t kPages = 1024;
constexpr uint64_t kLocal = 256;

uint64_t word_of(uint64_t target, uint64_t page) {
  return (target << 32) | (page * 7919);
}

void fill(const Rig::Another& target, uint64_t number) {
  for (uint64_t page = 0; page < kPages; ++page) *target.page(page) = word_of(number, page);
}
uint64_t wrong_pages(const Rig::Another& target, uint64_t number) {
  uint64_t wrong = 0;
  for (uint64_t page = 0; page < kPages; ++page)
    wrong += *target.page(page) != word_of(number, page) ? 1 : 0;
  return wrong;
}

TEST(Engine, TargetsKeepTheirMemoryApartAndTheirBudgets) {
  Rig rig({.pages = kPages, .local_pages = kLocal});
  std::vector<Rig::Another> targets;
  for (int i = 0; i < 5; ++i) targets.push_back(rig.add(kPages, kLocal));
  std::vector<std::jthread> threads;
  std::atomic<uint64_t> wrong{0};
  for (size_t i = 0; i < targets.size(); ++i)
    threads.emplace_back([&, i] {
      fill(targets[i], i);
      for (int round = 0; round < 3; ++round) wrong += wrong_pages(targets[i], i);
    });
  threads.clear();
  EXPECT_EQ(wrong, 0U);
  for (const Rig::Another& target : targets) {
    const PagerStats stats = target.pager->stats();
    EXPECT_LE(stats.resident_pages, kLocal);
    EXPECT_GT(stats.evicted_written, kPages / 2);
    EXPECT_GT(stats.faults_remote, kPages);
    EXPECT_EQ(stats.faults_failed, 0U);
    EXPECT_EQ(stats.fault_ns.count(), stats.faults_remote);
  }
  EXPECT_EQ(rig.stats().faults_zero, 0U) << "the faults of the others are not counted here";
}

TEST(Engine, ATargetEndsWhileTheOthersFault) {
  Rig rig({.pages = kPages, .local_pages = kLocal});
  const Rig::Another steady = rig.add(kPages, kLocal);
  fill(steady, 7);
  std::atomic<bool> ends{false};
  std::atomic<uint64_t> wrong{0};
  std::jthread reader([&] {
    while (!ends) wrong += wrong_pages(steady, 7);
  });
  ASSERT_TRUE(comes_true([&] { return steady.pager->stats().faults_remote > 0; }));
  for (uint64_t i = 0; i < 30; ++i) {
    const Rig::Another brief = rig.add(kPages, kLocal);
    fill(brief, i);
    EXPECT_EQ(wrong_pages(brief, i), 0U) << i;
  }
  ends = true;
  reader.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(steady.pager->stats().faults_failed, 0U);
}

uint64_t resident_bytes_of_this_process() {
  std::ifstream file("/proc/self/statm");
  uint64_t pages = 0;
  file >> pages >> pages;
  return pages * kPageBytes;
}

// The page table of a target is memory of the program's use; the rest is what a process costs.
TEST(Engine, AnIdleTargetCostsLessThan64KiB) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "a sanitizer's shadow memory and red zones are resident, too";
#endif
  constexpr uint64_t kTargets = 100;
  Rig rig({.pages = kPages, .local_pages = kLocal});
  std::vector<Rig::Another> targets;
  const auto add = [&](uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) targets.push_back(rig.add(kPages, kLocal));
  };
  add(10);  // what the first ones cost only once
  // What the engine's own threads touch for the first time meanwhile is counted, too: not thrice.
  uint64_t each = std::numeric_limits<uint64_t>::max();
  for (int round = 0; round < 3; ++round) {
    const uint64_t before = resident_bytes_of_this_process();
    add(kTargets);
    each = std::min(each, (resident_bytes_of_this_process() - before) / kTargets);
  }
  RecordProperty("bytes", std::to_string(each));
  std::printf("an idle target: %.1f KiB\n", static_cast<double>(each) / 1024);
  EXPECT_GT(each, 1024U);
  EXPECT_LT(each, uint64_t{64} << 10);
}

// READs of a removed target are still on the wire.
TEST(Engine, ATargetEndsWhileItsReadsAreUnanswered) {
  Rig rig({.transport = rdma::TransportKind::kLoop,
           .pages = kPages,
           .local_pages = kLocal,
           .prefetch_depth = 16,
           .adaptive_water_marks = false,
           .operation_timeout = Milliseconds(2000)});
  Rig::Another brief = rig.add(kPages, kLocal);
  fill(brief, 1);
  ASSERT_TRUE(comes_true([&] { return brief.pager->stats().evicted_written > kPages / 2; }));
  ASSERT_TRUE(brief.pager->is_away(PageIndex{0}));
  // The evictor ends: its WRITEs would be awaited.
  uint64_t before = 0;
  do {
    before = brief.pager->stats().evictions();
    std::this_thread::sleep_for(Milliseconds(50));
  } while (brief.pager->stats().evictions() != before);
  rig.loop().set_stalled("n1", true);
  const uint64_t posted = brief.pager->stats().queue_ns.count();
  // By a system call: the memory is unmapped meanwhile.
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const Fd in(pipe[0]);
  const Fd out(pipe[1]);
  std::jthread reader([&, first = brief.base] {
    (void)!::write(out.get(), reinterpret_cast<const void*>(first), 8);
  });
  ASSERT_TRUE(comes_true([&] { return brief.pager->stats().queue_ns.count() > posted; }));
  const Instant start = SteadyClock::read();
  brief.pager.reset();
  EXPECT_LT(SteadyClock::read() - start, Seconds(1)) << "it has waited for the READ";
  reader.join();
  rig.loop().set_stalled("n1", false);
  for (uint64_t page = 0; page < kPages; ++page) fill(rig, page, 3);
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_TRUE(holds(rig, page, 3)) << page;
}

}  // namespace
}  // namespace farpage::pager
