// The kernel's rules, on a real userfaultfd of this process.
#include "uffd/own_process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "uffd/kernel_abi.h"
#include "uffd/other_process.h"
#include "uffd/probe.h"

namespace farpage::uffd {

void PrintTo(ZeroFrames frames, std::ostream* out) {
  *out << (frames == ZeroFrames::kShared ? "Shared" : "Own");
}

namespace {

std::unique_ptr<AddressSpace> make_window(uint64_t pages, bool user_mode_only = false) {
  auto window = create_own_window(pages, user_mode_only);
  EXPECT_TRUE(window.has_value()) << window.error().message();
  return std::move(*window);
}

volatile char* at(AddressSpace& window, uint64_t page) {
  return reinterpret_cast<volatile char*>(window.address_of(PageIndex{page}));
}

// Blocks until an event is there.
Event next_event(AddressSpace& window) {
  std::array<Event, 1> event;
  while (window.read_events(event) == 0) {
    pollfd poll{window.event_descriptor(), POLLIN, 0};
    EXPECT_EQ(::poll(&poll, 1, 10'000), 1);
  }
  return std::move(event[0]);
}

std::vector<std::byte> page_of(int value) {
  return std::vector<std::byte>(kPageBytes, static_cast<std::byte>(value));
}

TEST(Userfaultfd, ItsDescriptorSaysWhetherItTellsOfForks) {
  const auto quiet = Userfaultfd::create(eventless_features());
  ASSERT_TRUE(quiet) << quiet.error().message();
  EXPECT_FALSE(tells_of_forks(quiet->fd()));
  if (!fork_events_allowed()) GTEST_SKIP() << "no CAP_SYS_PTRACE";
  const auto telling = Userfaultfd::create({.required = UFFD_FEATURE_EVENT_FORK, .wanted = 0});
  ASSERT_TRUE(telling) << telling.error().message();
  EXPECT_TRUE(tells_of_forks(telling->fd()));
}

TEST(OwnWindow, MissingFaultIsReadInstalledAndWoken) {
  auto window = make_window(8);
  char seen = 0;
  std::thread toucher([&] { seen = *at(*window, 3); });
  const Event event = next_event(*window);
  const auto* fault = std::get_if<Fault>(&event);
  ASSERT_NE(fault, nullptr);
  EXPECT_EQ(fault->page.value, 3U);
  EXPECT_EQ(fault->kind, FaultKind::kMissingRead);
  EXPECT_NE(fault->thread, 0U);
  EXPECT_EQ(window->install(PageIndex{3}, page_of(7), Protection::kWritable), Outcome::kDone);
  toucher.join();
  EXPECT_EQ(seen, 7);
}

TEST(OwnWindow, SecondInstallIsAlreadyPresentAndChangesNothing) {
  auto window = make_window(8);
  EXPECT_EQ(window->install(PageIndex{1}, page_of(1), Protection::kWritable), Outcome::kDone);
  EXPECT_EQ(window->install(PageIndex{1}, page_of(2), Protection::kWritable),
            Outcome::kAlreadyPresent);
  EXPECT_EQ(window->zero({PageIndex{1}, 1}, ZeroFrames::kShared).outcome, Outcome::kAlreadyPresent);
  EXPECT_EQ(*at(*window, 1), 1);
}

class OwnWindowZeros : public testing::TestWithParam<ZeroFrames> {};

INSTANTIATE_TEST_SUITE_P(Frames, OwnWindowZeros,
                         testing::Values(ZeroFrames::kShared, ZeroFrames::kOwn),
                         testing::PrintToStringParamName());

TEST_P(OwnWindowZeros, AreWritableMemory) {
  auto window = make_window(kMaxZeroRun);
  const ZeroResult all = window->zero({PageIndex{0}, kMaxZeroRun}, GetParam());
  EXPECT_EQ(all.outcome, Outcome::kDone);
  EXPECT_EQ(all.pages, kMaxZeroRun);
  for (uint64_t page = 0; page < kMaxZeroRun; ++page) {  // no fault but the kernel's own
    ASSERT_EQ(*at(*window, page), 0);
    *at(*window, page) = 1;
    ASSERT_EQ(*at(*window, page), 1);
  }
}

TEST_P(OwnWindowZeros, StopAtAPresentPage) {
  auto window = make_window(8);
  EXPECT_EQ(window->install(PageIndex{3}, page_of(9), Protection::kWritable), Outcome::kDone);
  const ZeroResult some = window->zero({PageIndex{1}, 4}, GetParam());
  EXPECT_EQ(some.outcome, Outcome::kAlreadyPresent);
  EXPECT_EQ(some.pages, 2U);
  EXPECT_EQ(*at(*window, 2), 0);
  EXPECT_EQ(*at(*window, 3), 9);
  const ZeroResult none = window->zero({PageIndex{3}, 2}, GetParam());
  EXPECT_EQ(none.outcome, Outcome::kAlreadyPresent);
  EXPECT_EQ(none.pages, 0U);
}

TEST_P(OwnWindowZeros, AreOfOneMapping) {
  auto window = make_window(8);
  ASSERT_EQ(::mprotect(reinterpret_cast<void*>(window->address_of(PageIndex{4})), 4 * kPageBytes,
                       PROT_NONE),
            0);
  const ZeroResult none = window->zero({PageIndex{2}, 4}, GetParam());
  EXPECT_EQ(none.outcome, Outcome::kUnmapped);
  EXPECT_EQ(none.pages, 0U);
  EXPECT_EQ(window->zero({PageIndex{2}, 2}, GetParam()).outcome, Outcome::kDone);
  EXPECT_EQ(*at(*window, 3), 0);
}

TEST(OwnWindow, RunOverAPresentPageInstallsTheRest) {
  auto window = make_window(8);
  EXPECT_EQ(window->install(PageIndex{2}, page_of(9), Protection::kWritable), Outcome::kDone);
  std::vector<std::byte> run;
  for (int value = 1; value <= 4; ++value) {
    const auto page = page_of(value);
    run.insert(run.end(), page.begin(), page.end());
  }
  EXPECT_NE(window->install(PageIndex{1}, run, Protection::kWritable), Outcome::kRetry);
  EXPECT_EQ(*at(*window, 1), 1);
  EXPECT_EQ(*at(*window, 2), 9);
  EXPECT_EQ(*at(*window, 3), 3);
  EXPECT_EQ(*at(*window, 4), 4);
}

TEST(OwnWindow, WriteToAProtectedPageFaultsUntilItIsUnprotected) {
  auto window = make_window(8);
  ASSERT_EQ(window->install(PageIndex{0}, page_of(1), Protection::kWriteProtected), Outcome::kDone);
  EXPECT_EQ(*at(*window, 0), 1);  // reading is free
  // Atomic: the writer stands still in the middle of its write.
  std::thread writer([&] { __atomic_store_n(at(*window, 0), 2, __ATOMIC_RELAXED); });
  const Event event = next_event(*window);
  const auto* fault = std::get_if<Fault>(&event);
  ASSERT_NE(fault, nullptr);
  EXPECT_EQ(fault->kind, FaultKind::kWriteProtected);
  EXPECT_EQ(__atomic_load_n(at(*window, 0), __ATOMIC_RELAXED), 1);
  EXPECT_EQ(window->unprotect({PageIndex{0}, 1}), Outcome::kDone);
  writer.join();
  EXPECT_EQ(*at(*window, 0), 2);
}

TEST(OwnWindow, DroppedPageIsMissingAgain) {
  auto window = make_window(8);
  for (uint64_t page = 0; page < 4; ++page)
    ASSERT_EQ(window->install(PageIndex{page}, page_of(5), Protection::kWritable), Outcome::kDone);
  const PageRun run{PageIndex{1}, 2};
  DropResult result;
  ASSERT_TRUE(window->drop({&run, 1}, {&result, 1}, Seconds(1)).has_value());
  EXPECT_EQ(result.sys_errno, 0);
  EXPECT_EQ(window->install(PageIndex{1}, page_of(6), Protection::kWritable), Outcome::kDone);
  EXPECT_EQ(*at(*window, 0), 5);
  EXPECT_EQ(*at(*window, 1), 6);
}

TEST(OwnWindow, UnmappedPageIsAnOutcomeNotAnError) {
  auto window = make_window(8);
  std::thread unmapper(
      [&] { ::munmap(reinterpret_cast<void*>(window->address_of(PageIndex{5})), kPageBytes); });
  const Event event = next_event(*window);
  unmapper.join();
  const auto* unmapped = std::get_if<Unmapped>(&event);
  ASSERT_NE(unmapped, nullptr);
  ASSERT_EQ(unmapped->runs.size(), 1U);
  EXPECT_EQ(unmapped->runs[0].first.value, 5U);
  EXPECT_EQ(window->install(PageIndex{5}, page_of(1), Protection::kWritable), Outcome::kUnmapped);
  EXPECT_EQ(window->protect({PageIndex{5}, 1}), Outcome::kUnmapped);
}

TEST(OwnWindow, IoctlsWhileAnEventIsQueuedSayRetry) {
  auto window = make_window(8);
  std::thread unmapper(
      [&] { ::munmap(reinterpret_cast<void*>(window->address_of(PageIndex{7})), kPageBytes); });
  pollfd poll{window->event_descriptor(), POLLIN, 0};
  ASSERT_EQ(::poll(&poll, 1, 10'000), 1);
  EXPECT_EQ(window->install(PageIndex{0}, page_of(1), Protection::kWritable), Outcome::kRetry);
  (void)next_event(*window);
  unmapper.join();
  EXPECT_EQ(window->install(PageIndex{0}, page_of(1), Protection::kWritable), Outcome::kDone);
}

TEST(OwnWindow, KernelFaultsAreServedUnlessUserModeOnly) {
  auto window = make_window(8);
  ASSERT_EQ(window->install(PageIndex{0}, page_of('x'), Protection::kWritable), Outcome::kDone);
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  std::atomic<ssize_t> wrote{0};
  std::thread writer([&] {
    wrote = ::write(pipes[1], reinterpret_cast<void*>(window->address_of(PageIndex{2})), 16);
  });
  const Event event = next_event(*window);
  EXPECT_TRUE(std::holds_alternative<Fault>(event));
  EXPECT_EQ(window->install(PageIndex{2}, page_of('y'), Protection::kWritable), Outcome::kDone);
  writer.join();
  EXPECT_EQ(wrote, 16);

  auto user_only = make_window(8, true);
  EXPECT_EQ(::write(pipes[1], reinterpret_cast<void*>(user_only->address_of(PageIndex{2})), 16),
            -1);
  EXPECT_EQ(errno, EFAULT);
  ::close(pipes[0]);
  ::close(pipes[1]);
}

TEST(OwnWindow, IsAliveAsLongAsThisProcess) {
  auto window = make_window(8);
  EXPECT_TRUE(window->alive());
}

TEST(Probe, ReportsWhatTheKernelOffers) {
  const KernelReport report = probe_kernel();
  EXPECT_TRUE(report.device_works || report.system_call_works || report.user_mode_works);
  bool has_wp = false;
  for (const FeatureReport& feature : report.features)
    has_wp = has_wp || (feature.name == "WP" && feature.present && feature.required);
  EXPECT_TRUE(has_wp);
}

}  // namespace
}  // namespace farpage::uffd
