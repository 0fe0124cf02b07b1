// GuestMemory over descriptors that this process makes as a VMM does.
#include "uffd/guest_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <thread>

#include "base/mapping.h"
#include "uffd/kernel_abi.h"

namespace farpage::uffd {
namespace {

Fd make_userfaultfd(uint64_t features, bool call_api = true, int flags = O_CLOEXEC) {
  Fd fd(static_cast<int>(::syscall(SYS_userfaultfd, flags | UFFD_USER_MODE_ONLY)));
  EXPECT_TRUE(fd.valid());
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = features;
  if (call_api && ::ioctl(fd.get(), UFFDIO_API, &api) != 0) ADD_FAILURE() << "UFFDIO_API";
  return fd;
}

// Memory of this process that is registered, and the pager's end of it.
struct Guest {
  explicit Guest(size_t pages, uint64_t features = UFFD_FEATURE_EVENT_REMOVE) {
    memory = std::move(*Mapping::anonymous(pages << kPageShift));
    Fd fd = make_userfaultfd(features);
    uffdio_register request{};
    request.range = {.start = address(0), .len = memory.size()};
    request.mode = UFFDIO_REGISTER_MODE_MISSING;
    EXPECT_EQ(::ioctl(fd.get(), UFFDIO_REGISTER, &request), 0);
    auto adopted = GuestMemory::adopt(std::move(fd));
    EXPECT_TRUE(adopted.has_value()) << adopted.error().message();
    uffd.emplace(std::move(*adopted));
  }
  uint64_t address(size_t page) const {
    return reinterpret_cast<uint64_t>(memory.data()) + (page << kPageShift);
  }
  GuestMemory::Events await_events() {
    pollfd polled{uffd->fd(), POLLIN, 0};
    GuestMemory::Events events;
    while (!events.any()) {
      EXPECT_EQ(::poll(&polled, 1, 10000), 1);
      uffd->read(events);
    }
    return events;
  }

  Mapping memory;
  std::optional<GuestMemory> uffd;
};

TEST(GuestMemory, OtherDescriptorsAreRefused) {
  for (const char* path : {"/dev/null", "/proc/self/maps"}) {
    const auto refused = GuestMemory::adopt(Fd(::open(path, O_RDONLY | O_CLOEXEC)));
    ASSERT_FALSE(refused.has_value()) << path;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalid);
  }
  const auto unready = GuestMemory::adopt(make_userfaultfd(0, false));
  ASSERT_FALSE(unready.has_value());
  EXPECT_NE(unready.error().context.find("UFFDIO_API"), std::string::npos);
}

TEST(GuestMemory, KnowsWhetherEventsWereAskedForAndNeverBlocks) {
  const auto plain = GuestMemory::adopt(make_userfaultfd(0));
  ASSERT_TRUE(plain.has_value()) << plain.error().message();
  EXPECT_FALSE(plain->has_events());
  auto with_events = GuestMemory::adopt(make_userfaultfd(UFFD_FEATURE_EVENT_REMOVE));
  ASSERT_TRUE(with_events.has_value());
  EXPECT_TRUE(with_events->has_events());
  EXPECT_NE(::fcntl(with_events->fd(), F_GETFL) & O_NONBLOCK, 0);
  GuestMemory::Events events;
  with_events->read(events);
  EXPECT_FALSE(events.any());
}

TEST(GuestMemory, FaultIsAnsweredWithThePage) {
  Guest guest(4);
  std::array<std::byte, kPageBytes> page;
  page.fill(std::byte{0x5a});
  std::byte seen{};
  std::thread toucher([&] { seen = guest.memory.data()[(2 << kPageShift) + 100]; });
  const auto events = guest.await_events();
  ASSERT_EQ(events.fault_count, 1U);
  EXPECT_EQ(events.faults[0].address, guest.address(2));
  EXPECT_FALSE(events.faults[0].is_write);
  EXPECT_EQ(guest.uffd->copy(guest.address(2), page), Outcome::kDone);
  toucher.join();
  EXPECT_EQ(seen, std::byte{0x5a});
  EXPECT_EQ(guest.uffd->copy(guest.address(2), page), Outcome::kAlreadyPresent);
}

TEST(GuestMemory, PlacingIsRefusedUntilTheEventOfAGivenBackPageIsRead) {
  Guest guest(4);
  std::array<std::byte, kPageBytes> page{};
  ASSERT_EQ(guest.uffd->copy(guest.address(1), page), Outcome::kDone);
  std::thread giver([&] {
    EXPECT_EQ(::madvise(guest.memory.data() + kPageBytes, 2 * kPageBytes, MADV_DONTNEED), 0);
  });
  pollfd polled{guest.uffd->fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&polled, 1, 10000), 1);
  EXPECT_EQ(guest.uffd->copy(guest.address(3), page), Outcome::kRetry);
  const auto events = guest.await_events();
  ASSERT_EQ(events.gone_count, 1U);
  EXPECT_EQ(events.gone[0].begin, guest.address(1));
  EXPECT_EQ(events.gone[0].end, guest.address(3));
  EXPECT_FALSE(events.gone[0].unmapped);
  giver.join();
  EXPECT_EQ(guest.uffd->copy(guest.address(3), page), Outcome::kDone);
}

// A process with our descriptors, which ends at once; what it did was done when this returns.
template <typename Action>
void in_a_process_that_dies(Action action) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    action();
    (void)::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
}

TEST(GuestMemory, EventThatADeadProcessHasReadIsThereForTheNextOne) {
  Guest guest(8);
  const Fd memory = std::move(*create_memfd("landing", kPageBytes));
  const Mapping kept = std::move(*Mapping::shared(memory.get(), kPageBytes));
  const auto landing = kept.bytes().first(GuestMemory::kLandingBytes);
  GuestMemory::Events left;
  GuestMemory::left_in(landing, left);
  EXPECT_FALSE(left.any()) << "nothing was read";
  guest.uffd->land_in(landing);
  std::thread giver([&] {
    EXPECT_EQ(::madvise(guest.memory.data() + 3 * kPageBytes, 2 * kPageBytes, MADV_DONTNEED), 0);
  });
  in_a_process_that_dies([&] { (void)guest.await_events(); });
  giver.join();
  guest.uffd->read(left);
  EXPECT_FALSE(left.any()) << "it comes only once";
  for (int i = 0; i < 2; ++i) {
    GuestMemory::left_in(landing, left);
    ASSERT_EQ(left.gone_count, 1U);
    EXPECT_EQ(left.fault_count, 0U);
    EXPECT_EQ(left.gone[0].begin, guest.address(3));
    EXPECT_EQ(left.gone[0].end, guest.address(5));
    EXPECT_FALSE(left.gone[0].unmapped);
  }
}

TEST(GuestMemory, WhetherADeadProcessHasPlacedAPageIsInItsArgument) {
  Guest guest(8, 0);
  EXPECT_FALSE(guest.uffd->tells_removals());
  const Fd memory = std::move(*create_memfd("argument", kPageBytes));
  const Mapping kept = std::move(*Mapping::shared(memory.get(), kPageBytes));
  const auto argument = kept.bytes().first(GuestMemory::kArgumentBytes);
  std::array<std::byte, kPageBytes> page;
  page.fill(std::byte{0x5a});
  EXPECT_FALSE(GuestMemory::is_placed(argument)) << "nothing was done";
  in_a_process_that_dies([&] {
    GuestMemory::clear_argument(argument);
    (void)guest.uffd->copy_noted(guest.address(1), page, argument);
  });
  EXPECT_TRUE(GuestMemory::is_placed(argument));
  EXPECT_EQ(guest.memory.data()[kPageBytes], std::byte{0x5a});
  GuestMemory::clear_argument(argument);
  EXPECT_FALSE(GuestMemory::is_placed(argument));
  EXPECT_EQ(guest.uffd->copy_noted(guest.address(1), page, argument), Outcome::kAlreadyPresent);
  EXPECT_TRUE(GuestMemory::is_placed(argument)) << "it is there";
  EXPECT_EQ(guest.uffd->copy_noted(uint64_t{1} << 46, page, argument), Outcome::kUnmapped);
  EXPECT_FALSE(GuestMemory::is_placed(argument));
}

TEST(GuestMemory, MemoryThatWasUnmappedIsToldSo) {
  Guest guest(4, UFFD_FEATURE_EVENT_UNMAP);
  std::thread unmapper([&] { EXPECT_EQ(::munmap(guest.memory.data(), kPageBytes), 0); });
  const auto events = guest.await_events();
  unmapper.join();
  ASSERT_EQ(events.gone_count, 1U);
  EXPECT_TRUE(events.gone[0].unmapped);
  std::array<std::byte, kPageBytes> page{};
  EXPECT_EQ(guest.uffd->copy(guest.address(0), page), Outcome::kUnmapped);
}

}  // namespace
}  // namespace farpage::uffd
