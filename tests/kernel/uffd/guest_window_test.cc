// The memory of a VMM that has registered it with a userfaultfd of its own.
#include "uffd/guest_window.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <optional>
#include <thread>

#include "../../sleeping_thread.h"
#include "base/mapping.h"
#include "uffd/other_process.h"

namespace farpage::uffd {
namespace {

constexpr size_t kGuestPages = 64;
constexpr uint64_t kStagingPages = 512;

// This process is the VMM, and the pagers are in it, one after the other.
class Vmm {
 public:
  explicit Vmm(uint64_t features = UFFD_FEATURE_EVENT_REMOVE)
      : memory(std::move(*Mapping::anonymous(kGuestPages << kPageShift))),
        extents_(std::move(*create_memfd("extents", ExtentMap::kKeptBytes))),
        events_(std::move(*create_memfd("events", kGuestEventBytes))),
        userfaultfd_(static_cast<int>(
            ::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY))) {
    uffdio_api api{.api = UFFD_API, .features = features, .ioctls = 0};
    EXPECT_EQ(::ioctl(userfaultfd_.get(), UFFDIO_API, &api), 0);
    uffdio_register request{};
    request.range = {.start = begin(), .len = memory.size()};
    request.mode = UFFDIO_REGISTER_MODE_MISSING;
    EXPECT_EQ(::ioctl(userfaultfd_.get(), UFFDIO_REGISTER, &request), 0);
  }

  uint64_t begin() const { return reinterpret_cast<uint64_t>(memory.data()); }
  std::byte* page(size_t number) const { return memory.data() + (number << kPageShift); }
  Result<std::unique_ptr<AddressSpace>> pager(bool is_new) const {
    const std::array ranges{GuestRange{begin(), begin() + memory.size()}};
    return adopt_guest(std::move(*userfaultfd_.duplicate()), ranges, kStagingPages, is_new,
                       std::move(*Mapping::shared(extents_.get(), ExtentMap::kKeptBytes)),
                       std::move(*Mapping::shared(events_.get(), kGuestEventBytes)));
  }
  void await_message() const {
    pollfd polled{userfaultfd_.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&polled, 1, 60'000), 1);
  }

  Mapping memory;

 private:
  Fd extents_;
  Fd events_;
  Fd userfaultfd_;
};

std::array<Event, 16> messages_of(AddressSpace& space, size_t& count) {
  std::array<Event, 16> events;
  count = space.read_events(events);
  return events;
}

PageIndex first_page(const Vmm& vmm, const AddressSpace& space) {
  const auto runs = space.runs_in(vmm.begin(), vmm.begin() + vmm.memory.size());
  EXPECT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].pages, kGuestPages);
  return runs[0].first;
}

TEST(GuestWindow, AThreadThatWaitsIsNotWokenWhileTheRegistrationChanges) {
  const Vmm vmm;
  SleepingThread sleeping;
  std::byte got{0};
  std::jthread thread([&] {
    sleeping.begin();
    got = *static_cast<volatile std::byte*>(vmm.page(5));
  });
  const uint64_t sleep = sleeping.await();
  auto space = vmm.pager(true);
  ASSERT_TRUE(space.has_value()) << space.error().message();
  EXPECT_TRUE(sleeping.sleeps_since(sleep)) << "it would have read zeros";
  const PageIndex page{first_page(vmm, **space).value + 5};
  std::array<std::byte, kPageBytes> bytes{std::byte{7}};
  ASSERT_EQ((*space)->install(page, bytes, Protection::kWriteProtected), Outcome::kDone);
  thread.join();
  EXPECT_EQ(got, std::byte{7});
  // The first fault, and that of a write to the page that is protected now.
  std::jthread writer([&] { *vmm.page(5) = std::byte{8}; });
  std::optional<FaultKind> last;
  while (last != FaultKind::kWriteProtected) {
    vmm.await_message();
    size_t count = 0;
    const auto events = messages_of(**space, count);
    (*space)->end_reading();
    for (size_t i = 0; i < count; ++i)
      if (const auto* fault = std::get_if<Fault>(&events[i])) {
        EXPECT_EQ(fault->page, page);
        last = fault->kind;
      }
  }
  EXPECT_EQ((*space)->unprotect({page, 1}), Outcome::kDone);
  writer.join();
  EXPECT_EQ(*vmm.page(5), std::byte{8});
}

std::vector<PageRun> given_up_in(AddressSpace& space) {
  size_t count = 0;
  const auto events = messages_of(space, count);
  std::vector<PageRun> runs;
  for (size_t i = 0; i < count; ++i)
    if (const auto* unmapped = std::get_if<Unmapped>(&events[i]))
      runs.insert(runs.end(), unmapped->runs.begin(), unmapped->runs.end());
  return runs;
}

TEST(GuestWindow, WhatADeadPagerHasReadIsFollowedOnceMore) {
  const Vmm vmm;
  auto space = vmm.pager(true);
  ASSERT_TRUE(space.has_value()) << space.error().message();
  const PageIndex first = first_page(vmm, **space);
  std::jthread thread([&] { (void)::madvise(vmm.page(3), 2 * kPageBytes, MADV_DONTNEED); });
  vmm.await_message();
  ASSERT_TRUE((*space)->event_order()->try_begin_reading());
  EXPECT_EQ(given_up_in(**space).size(), 1U);
  thread.join();
  space->reset();  // killed before it has followed that
  auto successor = vmm.pager(false);
  ASSERT_TRUE(successor.has_value()) << successor.error().message();
  EXPECT_TRUE((*successor)->has_messages());
  ASSERT_TRUE((*successor)->event_order()->try_begin_reading());
  const std::vector<PageRun> again = given_up_in(**successor);
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again[0].first.value, first.value + 3);
  EXPECT_EQ(again[0].pages, 2U);
  (*successor)->end_reading();
  successor->reset();
  // That one has followed it.
  auto last = vmm.pager(false);
  ASSERT_TRUE(last.has_value());
  EXPECT_FALSE((*last)->has_messages());
}

TEST(GuestWindow, OnlyWhatIsPresentIsReadFromIt) {
  const Vmm vmm;
  auto space = vmm.pager(true);
  ASSERT_TRUE(space.has_value()) << space.error().message();
  const PageIndex first = first_page(vmm, **space);
  std::array<std::byte, kPageBytes> bytes{std::byte{7}};
  ASSERT_EQ((*space)->install(first, bytes, Protection::kWritable), Outcome::kDone);
  HandedOver agent;
  agent.pid = ::getpid();
  agent.ring = std::move(*Mapping::anonymous(sizeof(handover::AgentRing)));
  bind_child(**space, agent);
  std::array<std::byte, 2 * kPageBytes> out;
  const PageIndex second{first.value + 1};
  ASSERT_TRUE((*space)->read(std::array{first}, std::span(out).first(kPageBytes)).has_value());
  EXPECT_EQ(out[0], std::byte{7});
  const Status absent = (*space)->read(std::array{first, second}, out);
  ASSERT_FALSE(absent.has_value());
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
}

TEST(GuestWindow, AUserfaultfdThatDoesNotTellWhatIsGivenUpIsRefused) {
  const Vmm vmm(0);
  EXPECT_EQ(vmm.pager(true).error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace farpage::uffd
