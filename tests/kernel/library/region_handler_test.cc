// Behaviour that is specific to faults resolved in the thread's SIGBUS handler.
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "small_region.h"
#include "tcp_cluster.h"

namespace farpage {
namespace {

RegionOptions in_handler() {
  RegionOptions options = small_options();
  options.resolve_in_handler = true;
  return options;
}

TcpCluster make_cluster() {
  return TcpCluster(2 * small_options().bytes, small_options().slab_bytes);
}

// What a signal handler of the program touches.
const Region* touched_by_handler = nullptr;
volatile uint64_t touches_of_handler = 0;
void touch_some_page(int) {
  const Region& region = *touched_by_handler;
  const uint64_t page = touches_of_handler * 641 % pages_of(region);
  const uint64_t seen = *word(region, page);
  if (seen % 1'000'000 != page) std::abort();
  touches_of_handler = touches_of_handler + 1;
}

// Evicts the first pages, clean or dirty.
void write_all(const Region& region, uint64_t version) {
  for (size_t page = 0; page < pages_of(region); ++page) *word(region, page) = version + page;
}

TEST(RegionHandler, NoFaultThreadExists) {
  const Region region = make_region(in_handler());
  write_all(region, 1);
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(task.path() / "comm") >> name;
    EXPECT_NE(name, "fp-fault");
  }
}

TEST(RegionHandler, WritesToCleanPagesAreKept) {
  const Region region = make_region(in_handler());
  write_all(region, 1);
  for (uint64_t version = 2; version <= 4; ++version) {
    // Read first: prefetched pages are clean, and still protected when they are written.
    for (size_t page = 0; page < pages_of(region); ++page) {
      ASSERT_EQ(*word(region, page), version - 1 + page) << page;
      *word(region, page) = version + page;
    }
  }
  for (size_t page = 0; page < pages_of(region); ++page)
    ASSERT_EQ(*word(region, page), 4 + page) << page;
  const RegionStats stats = region.stats();
  EXPECT_GT(stats.faults_write, 64U) << "then they are expected, and pages come in writable";
  EXPECT_GT(stats.evicted_written, 1000U);
  EXPECT_LE(stats.resident_bytes, stats.local_bytes);
}

TEST(RegionHandler, PagesThatWereOnlyReadAreNotSentAgain) {
  RegionOptions options = in_handler();
  options.prefetch_pages = 0;
  const Region region = make_region(options);
  write_all(region, 1);
  uint64_t sum = 0;
  for (size_t page = 0; page < pages_of(region); ++page) sum += *word(region, page);
  const uint64_t written = region.stats().evicted_written;
  for (int round = 0; round < 3; ++round)
    for (size_t page = 0; page < pages_of(region); ++page) sum += *word(region, page);
  const uint64_t pages = pages_of(region);
  EXPECT_EQ(sum, 4 * (pages + pages * (pages - 1) / 2));
  EXPECT_GT(region.stats().evicted_clean, pages);
  // At most what was dirty when the reading began.
  EXPECT_LE(region.stats().evicted_written - written, small_options().local_bytes / kPage);
}

TEST(RegionHandler, AllMayLeaveWhateverItsThreadsHaveBegunToEvict) {
  const TcpCluster cluster = make_cluster();
  Region region = make_region(cluster.reached_by(in_handler()));
  // Most pages are remote in the second round: the waiting threads evict, and may be in any phase
  // of it at the end.
  for (int round = 0; round < 2; ++round) write_all(region, 1);
  ASSERT_TRUE(region.evict(region.bytes()).has_value());
  EXPECT_TRUE(eventually([&] {
    const RegionStats stats = region.stats();
    return stats.away_bytes == region.bytes().size() && stats.resident_bytes == 0;
  }));
  for (size_t page = 0; page < pages_of(region); ++page) ASSERT_EQ(*word(region, page), 1 + page);
}

TEST(RegionHandler, ASignalHandlerOfTheProgramMayTouchTheRegion) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer calls handlers of asynchronous signals with SIGBUS blocked";
#endif
  const TcpCluster cluster = make_cluster();
  RegionOptions options = cluster.reached_by(in_handler());
  options.workers = 1;
  const Region region = make_region(options);
  write_all(region, 1'000'000);
  touched_by_handler = &region;
  touches_of_handler = 0;
  struct sigaction action {
  }, former{};
  action.sa_handler = touch_some_page;
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(::sigaction(SIGALRM, &action, &former), 0);
  const itimerval often{.it_interval = {0, 50}, .it_value = {0, 50}}, never{};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  // Faults, evictions by the faulting thread, and signals during both.
  for (uint64_t version = 2; version < 2000 && touches_of_handler < 2000; ++version)
    write_all(region, version * 1'000'000);
  ASSERT_EQ(::setitimer(ITIMER_REAL, &never, nullptr), 0);
  ASSERT_EQ(::sigaction(SIGALRM, &former, nullptr), 0);
  EXPECT_GE(touches_of_handler, 2000U);
}

TEST(RegionHandler, SystemCallsOnPagesThatAreAwayAreRefusedUntilThePrefault) {
  Region region = make_region(in_handler());
  write_all(region, 1);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const auto range = region.bytes().first(kPage);
  EXPECT_EQ(::write(ends[1], range.data(), kPage), -1);
  EXPECT_EQ(errno, EFAULT);
  ASSERT_TRUE(region.prefault(range, Region::Prefault::kForReading));
  EXPECT_EQ(::write(ends[1], range.data(), kPage), static_cast<ssize_t>(kPage));
  // Present, but protected.
  EXPECT_EQ(::read(ends[0], range.data(), kPage), -1);
  EXPECT_EQ(errno, EFAULT);
  ASSERT_TRUE(region.prefault(range, Region::Prefault::kForWriting));
  EXPECT_EQ(::read(ends[0], range.data(), kPage), static_cast<ssize_t>(kPage));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(RegionHandler, ErrnoIsKeptOverAFault) {
  const Region region = make_region(in_handler());
  write_all(region, 1);
  for (size_t page = 0; page < pages_of(region); ++page) {
    errno = 4711;
    const uint64_t value = *word(region, page);
    ASSERT_EQ(errno, 4711);
    ASSERT_EQ(value, 1 + page);
  }
}

TEST(RegionHandler, ManyMoreThreadsThanWorkersWaitForTheirTurn) {
  RegionOptions options = in_handler();
  options.workers = 1;
  const Region region = make_region(options);
  write_all(region, 1);
  std::vector<std::jthread> threads;
  for (size_t t = 0; t < 8; ++t)
    threads.emplace_back([&region, t] {
      for (int round = 0; round < 2; ++round)
        for (size_t i = 0; i < pages_of(region); ++i) {
          const size_t page = (i * 7 + t * 250) % pages_of(region);
          ASSERT_EQ(*word(region, page), 1 + page);
        }
    });
}

TEST(RegionHandler, AThreadWithASignalStackUsesIt) {
  const Region region = make_region(in_handler());
  write_all(region, 1);
  std::jthread([&region] {
    std::vector<std::byte> memory(64 << 10);
    const stack_t stack{.ss_sp = memory.data(), .ss_flags = 0, .ss_size = memory.size()};
    ASSERT_EQ(::sigaltstack(&stack, nullptr), 0);
    for (size_t page = 0; page < pages_of(region); ++page) ASSERT_EQ(*word(region, page), 1 + page);
    const auto used = std::count_if(memory.begin(), memory.end(),
                                    [](std::byte byte) { return byte != std::byte{0}; });
    EXPECT_GT(used, 100);
    const stack_t none{.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
    ASSERT_EQ(::sigaltstack(&none, nullptr), 0);
  }).join();
}

thread_local sigjmp_buf escape;
void* foreign_address = nullptr;
void foreign_handler(int, siginfo_t* info, void*) {
  foreign_address = info->si_addr;
  siglongjmp(escape, 1);
}

// Memory behind the end of its file: a SIGBUS that is not ours.
volatile char* beyond_the_end() {
  const int fd = ::memfd_create("empty", MFD_CLOEXEC);
  return static_cast<volatile char*>(::mmap(nullptr, kPage, PROT_READ, MAP_SHARED, fd, 0));
}

void meet_a_foreign_handler() {
  struct sigaction action {};
  action.sa_sigaction = foreign_handler;
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(::sigaction(SIGBUS, &action, nullptr), 0);
  const Region region = make_region(in_handler());
  volatile char* foreign = beyond_the_end();
  write_all(region, 1);
  if (sigsetjmp(escape, 1) == 0) {
    (void)*foreign;
    FAIL() << "no SIGBUS";
  }
  EXPECT_EQ(foreign_address, const_cast<char*>(foreign));
  for (size_t page = 0; page < pages_of(region); ++page) ASSERT_EQ(*word(region, page), 1 + page);
}

[[noreturn]] void exit_with_the_result() {
  std::_Exit(testing::Test::HasFailure() ? 1 : 0);
}

// In processes of their own, because the handler is installed once.
class RegionHandlerDeathTest : public testing::Test {
 protected:
  RegionHandlerDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(RegionHandlerDeathTest, ForeignHandlersGetWhatIsTheirs) {
  EXPECT_EXIT((meet_a_foreign_handler(), exit_with_the_result()), testing::ExitedWithCode(0), "");
}

TEST_F(RegionHandlerDeathTest, WithoutAForeignHandlerTheDefaultActionEndsTheProcess) {
  // The address sanitizer is a foreign handler.
  const auto touch = [] {
    (void)::signal(SIGBUS, SIG_DFL);
    const Region region = make_region(in_handler());
    (void)*beyond_the_end();
  };
  EXPECT_EXIT(touch(), testing::KilledBySignal(SIGBUS), "");
  const auto raise = [] {
    (void)::signal(SIGBUS, SIG_DFL);
    const Region region = make_region(in_handler());
    ::raise(SIGBUS);
  };
  EXPECT_EXIT(raise(), testing::KilledBySignal(SIGBUS), "");
}

TEST(RegionHandler, TwoRegionsDoNotMixTheirPages) {
  const Region first = make_region(in_handler());
  const Region second = make_region(in_handler());
  write_all(first, 1);
  write_all(second, 1'000'000);
  for (size_t page = 0; page < pages_of(first); ++page) {
    ASSERT_EQ(*word(first, page), 1 + page);
    ASSERT_EQ(*word(second, page), 1'000'000 + page);
  }
}

}  // namespace
}  // namespace farpage
