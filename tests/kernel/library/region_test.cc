// The region as a program uses it: only the public header.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "small_region.h"

namespace farpage {
namespace {

bool is_present(volatile uint64_t* address) {
  unsigned char state = 0;
  EXPECT_EQ(::mincore(const_cast<uint64_t*>(address), kPage, &state), 0);
  return (state & 1) != 0;
}

void fill(const Region& region, uint64_t version) {
  for (size_t page = 0; page < pages_of(region); ++page)
    for (size_t i = 0; i < kPage / 8; i += 128)
      word(region, page)[i] = version * 1'000'000 + page + i;
}
void expect_filled(const Region& region, uint64_t version) {
  for (size_t page = 0; page < pages_of(region); ++page)
    for (size_t i = 0; i < kPage / 8; i += 128)
      ASSERT_EQ(word(region, page)[i], version * 1'000'000 + page + i) << page << " " << i;
}

// Resolved by the pager's threads, and by the faulting thread itself.
class RegionWithFaults : public testing::TestWithParam<bool> {
 protected:
  static RegionOptions options() {
    RegionOptions options = small_options();
    options.resolve_in_handler = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Resolved, RegionWithFaults, testing::Bool(), [](const auto& mode) {
  return std::string(mode.param ? "Handler" : "Workers");
});

TEST_P(RegionWithFaults, HoldsMoreThanItsBudgetAndLosesNoByte) {
  const Region region = make_region(options());
  for (uint64_t version = 1; version <= 2; ++version) {
    fill(region, version);
    expect_filled(region, version);
  }
  EXPECT_TRUE(eventually([&] { return region.stats().faults_remote > 0; }));
  const RegionStats stats = region.stats();
  EXPECT_GT(stats.evicted_written, 0U);
  EXPECT_LE(stats.resident_bytes, stats.local_bytes);
  EXPECT_EQ(stats.faults_failed, 0U);
  EXPECT_EQ(stats.transports, "loop");
}

TEST_P(RegionWithFaults, TwoReplicasAreBothWritten) {
  RegionOptions with_two = options();
  with_two.replicas = 2;
  const Region region = make_region(with_two);
  fill(region, 1);
  expect_filled(region, 1);
  const RegionStats stats = region.stats();
  EXPECT_GE(stats.written_bytes, 2 * stats.evicted_written * kPage);
}

TEST_P(RegionWithFaults, ManyThreadsSeeTheirOwnLastWrites) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(kSeed);
  const Region region = make_region(options());
  std::vector<std::jthread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&region, t] {
      std::mt19937_64 random(kSeed + t);
      std::vector<uint64_t> last(pages_of(region));
      for (int step = 0; step < 4000; ++step) {
        const size_t page = random() % last.size();
        ASSERT_EQ(word(region, page)[t], last[page]) << page;
        if (step % 2 == 0) word(region, page)[t] = last[page] = random();
      }
    });
}

TEST_P(RegionWithFaults, SurvivesTheMoveOfItsHandle) {
  Region first = make_region(options());
  std::byte* const address = first.bytes().data();
  fill(first, 1);
  Region second = std::move(first);
  EXPECT_EQ(second.bytes().data(), address);
  expect_filled(second, 1);
  second = make_region(options());
  EXPECT_EQ(*word(second, 0), 0U);
}

TEST(Region, SystemCallsReadAndWriteIt) {
  const Region region = make_region();
  fill(region, 1);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  std::array<std::byte, kPage> bytes{};
  for (size_t page = 0; page < pages_of(region); page += 64) {
    ASSERT_EQ(::write(ends[1], const_cast<uint64_t*>(word(region, page)), kPage),
              static_cast<ssize_t>(kPage));
    ASSERT_EQ(::read(ends[0], bytes.data(), kPage), static_cast<ssize_t>(kPage));
    EXPECT_EQ(std::memcmp(bytes.data(), const_cast<uint64_t*>(word(region, page)), kPage), 0);
  }
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_P(RegionWithFaults, DiscardedPagesAreZerosAndPartsOfPagesStay) {
  Region region = make_region(options());
  fill(region, 1);
  const auto range = region.bytes().subspan(10 * kPage + 1, 100 * kPage);
  ASSERT_TRUE(region.discard(range));
  EXPECT_EQ(*word(region, 10), 1'000'010U);
  for (size_t page = 11; page < 110; ++page) ASSERT_EQ(*word(region, page), 0U) << page;
  EXPECT_EQ(*word(region, 110), 1'000'110U);
}

TEST_P(RegionWithFaults, PrefaultedPagesAreHereAndTakeNoFault) {
  const Region region = make_region(options());
  fill(region, 1);
  const auto range = region.bytes().first(64 * kPage);
  ASSERT_TRUE(region.prefault(range, Region::Prefault::kForReading));
  for (size_t page = 0; page < 64; ++page) EXPECT_TRUE(is_present(word(region, page))) << page;
  EXPECT_EQ(*word(region, 63), 1'000'063U);

  ASSERT_TRUE(region.prefault(range, Region::Prefault::kForWriting));
  const auto write_faults = [&] { return region.stats().faults_write; };
  uint64_t settled = 0;
  EXPECT_TRUE(eventually([&] { return std::exchange(settled, write_faults()) == write_faults(); }));
  for (size_t page = 0; page < 64; ++page) *word(region, page) = 7;
  EXPECT_EQ(write_faults(), settled);
}

TEST_P(RegionWithFaults, PinnedPagesStayHereWhateverIsTouched) {
  Region region = make_region(options());
  fill(region, 1);
  const auto pinned = region.bytes().subspan(100 * kPage, 200 * kPage);
  ASSERT_TRUE(region.pin(pinned));
  for (uint64_t version = 2; version <= 3; ++version) {
    for (size_t page = 300; page < pages_of(region); ++page) *word(region, page) = version;
    for (size_t page = 100; page < 300; ++page) ASSERT_TRUE(is_present(word(region, page))) << page;
  }
  for (size_t page = 100; page < 300; ++page) ASSERT_EQ(*word(region, page), 1'000'000 + page);
  ASSERT_TRUE(region.unpin(pinned));
  for (size_t page = 300; page < pages_of(region); ++page) *word(region, page) = 4;
  EXPECT_FALSE(is_present(word(region, 100)));
  EXPECT_EQ(*word(region, 100), 1'000'100U);
}

TEST_P(RegionWithFaults, MoreThanTheBudgetIsNotPinned) {
  Region region = make_region(options());
  const auto refused = region.pin(region.bytes());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, RegionErrorCode::kExhausted);
  const size_t budget_pages = small_options().local_bytes / kPage;
  ASSERT_TRUE(region.pin(region.bytes().first(budget_pages * 8 / 10 * kPage)));
  EXPECT_FALSE(region.pin(region.bytes().subspan(budget_pages * kPage, budget_pages / 10 * kPage)));
  // The rest of the budget is enough for everything else.
  fill(region, 1);
  expect_filled(region, 1);
}

uint64_t present_bytes(const Region& region) {
  std::vector<unsigned char> states(pages_of(region));
  EXPECT_EQ(::mincore(region.bytes().data(), region.bytes().size(), states.data()), 0);
  return kPage * static_cast<uint64_t>(std::count_if(states.begin(), states.end(),
                                                     [](unsigned char s) { return (s & 1) != 0; }));
}

TEST_P(RegionWithFaults, ShrinksWithoutATouchAndGrowsAgain) {
  RegionOptions large = options();
  large.local_bytes = 2 * large.bytes;
  Region region = make_region(large);
  fill(region, 1);
  ASSERT_EQ(present_bytes(region), region.bytes().size());
  constexpr uint64_t kLittle = uint64_t{2} << 20;
  ASSERT_TRUE(region.set_local(kLittle).has_value());
  EXPECT_TRUE(eventually([&] { return present_bytes(region) <= kLittle; }));
  EXPECT_EQ(region.stats().local_bytes, kLittle);
  expect_filled(region, 1);
  fill(region, 2);
  expect_filled(region, 2);
  EXPECT_LE(region.stats().resident_bytes, kLittle);
  ASSERT_TRUE(region.set_local(large.local_bytes).has_value());
  expect_filled(region, 2);
  EXPECT_EQ(present_bytes(region), region.bytes().size());
}

TEST_P(RegionWithFaults, LocalMemoryThatCannotBeIsRefused) {
  Region region = make_region(options());  // 2 MiB of 8 are local
  const RegionStatus little = region.set_local(1000);
  ASSERT_FALSE(little.has_value());
  EXPECT_EQ(little.error().code, RegionErrorCode::kInvalid);
  const auto range = region.bytes().first(400 * kPage);
  ASSERT_TRUE(region.pin(range).has_value());
  const RegionStatus pinned = region.set_local(uint64_t{1} << 20);
  ASSERT_FALSE(pinned.has_value());
  EXPECT_EQ(pinned.error().code, RegionErrorCode::kConflict);
  EXPECT_EQ(region.stats().local_bytes, uint64_t{2} << 20);
  ASSERT_TRUE(region.unpin(range).has_value());
  EXPECT_TRUE(region.set_local(uint64_t{1} << 20).has_value());
}

TEST_P(RegionWithFaults, EvictedPagesLeaveAlthoughThereIsRoom) {
  Region region = make_region(options());
  for (size_t page = 0; page < 200; ++page) *word(region, page) = 1'000'000 + page;
  ASSERT_TRUE(region.evict(region.bytes().first(100 * kPage)));
  EXPECT_TRUE(eventually([&] { return region.stats().evicted_written == 100; }));
  EXPECT_FALSE(is_present(word(region, 99)));
  EXPECT_TRUE(is_present(word(region, 100)));
  EXPECT_EQ(*word(region, 99), 1'000'099U);
}

TEST_P(RegionWithFaults, NeededPagesComeInWithoutBeingTouched) {
  RegionOptions only_needed = options();
  only_needed.prefetch_pages = 0;
  Region region = make_region(only_needed);
  for (size_t page = 0; page < 200; ++page) *word(region, page) = 1'000'000 + page;
  // A page that is being fetched is not a victim.
  ASSERT_TRUE(eventually([&] { return region.stats().faults_zero == 200; }));
  ASSERT_TRUE(region.evict(region.bytes().first(200 * kPage)));
  ASSERT_TRUE(eventually([&] { return region.stats().resident_bytes == 0; }));
  ASSERT_TRUE(region.will_need(region.bytes().subspan(50 * kPage, 100 * kPage)));
  EXPECT_TRUE(
      eventually([&] { return is_present(word(region, 50)) && is_present(word(region, 149)); }));
  EXPECT_FALSE(is_present(word(region, 199)));
  EXPECT_EQ(*word(region, 149), 1'000'149U);
}

TEST_P(RegionWithFaults, OnlyWhatIsExpectedToBeRandomIsNotReadAhead) {
  Region region = make_region(options());
  fill(region, 1);
  const auto prefetched_by_a_walk = [&] {
    const uint64_t before = region.stats().prefetched;
    uint64_t sum = 0;
    for (size_t page = 0; page < pages_of(region); ++page) sum += *word(region, page);
    EXPECT_GT(sum, 0U);
    return region.stats().prefetched - before;
  };
  ASSERT_TRUE(region.expect(region.bytes(), Region::Access::kRandom));
  EXPECT_EQ(prefetched_by_a_walk(), 0U);
  ASSERT_TRUE(region.expect(region.bytes(), Region::Access::kSequential));
  EXPECT_GT(prefetched_by_a_walk(), 0U);
}

TEST(Region, PrefaultOfMoreThanTheBudgetIsRefused) {
  const Region region = make_region();
  const auto refused = region.prefault(region.bytes(), Region::Prefault::kForReading);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, RegionErrorCode::kExhausted);
}

TEST(Region, RangesOutsideAreRefused) {
  Region region = make_region();
  const std::span<std::byte> all = region.bytes();
  std::array<std::byte, 1> elsewhere{};
  for (const std::span<const std::byte> wrong :
       {std::span<const std::byte>(elsewhere),
        std::span<const std::byte>(all.data() + 1, all.size()),
        std::span<const std::byte>(all.data() - 1, 1)}) {
    for (const RegionStatus& refused :
         {region.discard(wrong), region.expect(wrong, Region::Access::kRandom),
          region.will_need(wrong), region.evict(wrong), region.pin(wrong), region.unpin(wrong)}) {
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code, RegionErrorCode::kInvalid);
    }
    EXPECT_EQ(region.prefault(wrong, Region::Prefault::kForReading).error().code,
              RegionErrorCode::kInvalid);
  }
  EXPECT_TRUE(region.discard(all.subspan(all.size())));
}

TEST(Region, OptionsThatCannotBeAreNamed) {
  struct Case {
    void (*change)(RegionOptions&);
    const char* named;
  };
  for (const Case& wrong :
       {Case{[](RegionOptions& o) { o.bytes = 0; }, "bytes"},
        Case{[](RegionOptions& o) { o.bytes = uint64_t{1} << 50; }, "bytes"},
        Case{[](RegionOptions& o) { o.local_bytes = 4096; }, "local"},
        Case{[](RegionOptions& o) { o.replicas = 4; }, "replicas"},
        Case{[](RegionOptions& o) { o.replicas = 0; }, "replicas"},
        Case{[](RegionOptions& o) { o.slab_bytes = 3 << 20; }, "slab"},
        Case{[](RegionOptions& o) { o.workers = 1000; }, "workers"},
        Case{[](RegionOptions& o) { o.prefetch_pages = 1000; }, "prefetch"},
        Case{[](RegionOptions& o) { o.fault_deadline = std::chrono::milliseconds(1); },
             "fault-deadline"},
        Case{[](RegionOptions& o) { o.transport = "tcp"; }, "transport"},
        Case{[](RegionOptions& o) {
               o.coordinator = "http://127.0.0.1:1";
               o.transport = "pigeon";
             },
             "transport"}}) {
    RegionOptions options = small_options();
    wrong.change(options);
    const auto region = Region::create(options);
    ASSERT_FALSE(region) << wrong.named;
    EXPECT_EQ(region.error().code, RegionErrorCode::kInvalid) << region.error().message;
    EXPECT_NE(region.error().message.find(wrong.named), std::string::npos)
        << region.error().message;
  }
}

TEST(Region, ACoordinatorThatIsNotThereIsUnavailable) {
  RegionOptions options = small_options();
  options.coordinator = "http://127.0.0.1:1";
  const auto region = Region::create(options);
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().code, RegionErrorCode::kUnavailable) << region.error().message;
}

TEST_P(RegionWithFaults, AChildOfForkHasNoRegionAndTheParentKeepsIt) {
  const Region region = make_region(options());
  fill(region, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    (void)::signal(SIGSEGV, SIG_DFL);  // the address sanitizer has a handler
    (void)*word(region, 0);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV) << status;
  expect_filled(region, 1);
}

}  // namespace
}  // namespace farpage
