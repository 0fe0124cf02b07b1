// What an injected agent does with the pages of its program.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <poll.h>
#include <array>
#include <cerrno>
#include <string>
#include <thread>

#include "base/strong.h"
#include "inject/agent_code.h"
#include "taken_program.h"
#include "uffd/kernel_abi.h"
#include "uffd/userfaultfd.h"

namespace farpage::test {
namespace {

using uffd::handover::Command;
using uffd::handover::CommandKind;
using uffd::handover::kMaxMovedPages;

class InjectedAgentCommands : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = why_no_injection()) GTEST_SKIP() << *why;
  }

  // `pages` filled pages of the program, registered with the agent's userfaultfd.
  void take(uint64_t pages) {
    address_ = program_.ask_number("map " + std::to_string(pages));
    pages_ = pages;
    contents_ = memory_of(program_.pid(), address_, pages * kPageBytes);
    program_.inject();
    expect_done(userfaultfd().register_range(address_, pages * kPageBytes));
  }
  uffd::Userfaultfd userfaultfd() {
    Result<Fd> copy = program_.agent().userfaultfd.duplicate();
    EXPECT_TRUE(copy.has_value());
    return uffd::Userfaultfd::adopt(std::move(*copy), program_.agent().features);
  }
  static void expect_done(const Status& status) {
    EXPECT_TRUE(status.has_value()) << status.error().message();
  }
  Command move(CommandKind kind, uint64_t page, uint32_t pages, uint32_t staging_page) {
    return program_.execute({.address = address_ + page * kPageBytes,
                             .pages = pages,
                             .kind = kind,
                             .staging_page = staging_page});
  }
  std::string contents(uint64_t page, uint64_t pages) {
    return contents_.substr(page * kPageBytes, pages * kPageBytes);
  }
  std::string staging(uint64_t page, uint64_t pages) {
    return memory_of(program_.pid(), program_.agent().staging_address + page * kPageBytes,
                     pages * kPageBytes);
  }
  uint64_t bad_words() {
    return program_.ask_number("check " + std::to_string(address_) + " " + std::to_string(pages_));
  }
  void leave() {
    expect_done(userfaultfd().unregister_range(address_, pages_ * kPageBytes));
    program_.withdraw();
  }

  TakenProgram program_;
  uint64_t address_ = 0;
  uint64_t pages_ = 0;
  std::string contents_;
};

TEST_F(InjectedAgentCommands, MovePagesToTheStagingAreaAndBack) {
  take(200);
  const Command out = move(CommandKind::kMoveOut, 3, kMaxMovedPages, 100);
  EXPECT_EQ(out.result, 0);
  EXPECT_EQ(out.kept, 0U);
  EXPECT_EQ(staging(100, kMaxMovedPages), contents(3, kMaxMovedPages));
  const Command back = move(CommandKind::kMoveBack, 3, kMaxMovedPages, 100);
  EXPECT_EQ(back.result, 0);
  EXPECT_EQ(back.kept, 0U);
  EXPECT_EQ(bad_words(), 0U);
  leave();
}

TEST_F(InjectedAgentCommands, MoveWhatIsThereAroundAbsentPages) {
  take(16);
  ASSERT_EQ(move(CommandKind::kMoveOut, 5, 2, 0).result, 0);
  const Command rest = move(CommandKind::kMoveOut, 0, 16, 10);
  EXPECT_EQ(rest.result, ENOENT);
  EXPECT_EQ(rest.kept, 0b110'0000U);
  EXPECT_EQ(staging(10, 5), contents(0, 5));
  EXPECT_EQ(staging(17, 9), contents(7, 9));
  // The two come back between the others.
  ASSERT_EQ(move(CommandKind::kMoveBack, 5, 2, 0).result, 0);
  const Command back = move(CommandKind::kMoveBack, 0, 16, 10);
  EXPECT_EQ(back.kept, 0b110'0000U);
  EXPECT_EQ(bad_words(), 0U);
  leave();
}

TEST_F(InjectedAgentCommands, KeepPagesWhoseDestinationIsTaken) {
  take(8);
  ASSERT_EQ(move(CommandKind::kMoveOut, 0, 1, 2).result, 0);
  const Command out = move(CommandKind::kMoveOut, 1, 4, 0);
  EXPECT_EQ(out.result, EEXIST);
  EXPECT_EQ(out.kept, 0b100U);
  EXPECT_EQ(staging(2, 1), contents(0, 1));
  EXPECT_EQ(staging(3, 1), contents(4, 1));
  EXPECT_EQ(move(CommandKind::kMoveBack, 0, 1, 2).result, 0);
  EXPECT_EQ(move(CommandKind::kMoveBack, 1, 4, 0).kept, 0b100U);
  EXPECT_EQ(bad_words(), 0U);
  leave();
}

TEST_F(InjectedAgentCommands, RefuseAMoveThatLeavesTheStagingArea) {
  take(8);
  EXPECT_EQ(move(CommandKind::kMoveOut, 0, 4, inject::kStagingPages - 3).result, EINVAL);
  EXPECT_EQ(move(CommandKind::kMoveOut, 0, kMaxMovedPages + 1, 0).result, EINVAL);
  EXPECT_EQ(move(CommandKind::kMoveOut, 0, 0, 0).result, EINVAL);
  EXPECT_EQ(move(CommandKind::kMoveOut, 0, 4, inject::kStagingPages - 4).result, 0);
  EXPECT_EQ(move(CommandKind::kMoveBack, 0, 4, inject::kStagingPages - 4).result, 0);
  EXPECT_EQ(bad_words(), 0U);
  leave();
}

TEST_F(InjectedAgentCommands, MoveTheAnonymousPartOfSeveralMappings) {
  take(16);
  // Read-only pages stay where they are: three mappings then.
  ASSERT_EQ(program_.ask("protect " + std::to_string(address_ + 4 * kPageBytes) + " 2"), "0");
  const Command out = move(CommandKind::kMoveOut, 0, 16, 0);
  EXPECT_EQ(out.result, EINVAL);
  EXPECT_EQ(out.kept, 0b11'0000U);
  EXPECT_EQ(staging(0, 4), contents(0, 4));
  EXPECT_EQ(staging(6, 10), contents(6, 10));
  EXPECT_EQ(move(CommandKind::kMoveBack, 0, 4, 0).result, 0);
  EXPECT_EQ(move(CommandKind::kMoveBack, 6, 10, 6).result, 0);
  EXPECT_EQ(bad_words(), 0U);
  leave();
}

TEST_F(InjectedAgentCommands, MakePagesPrivateThatAForkedChildHasToo) {
  take(16);
  // A child of which no event tells: registered memory would wait for who reads that.
  expect_done(userfaultfd().unregister_range(address_, pages_ * kPageBytes));
  const std::string child = program_.ask("fork");
  expect_done(userfaultfd().register_range(address_, pages_ * kPageBytes));
  const Command shared = move(CommandKind::kMoveOut, 0, 16, 0);
  EXPECT_EQ(shared.result, EBUSY);
  EXPECT_EQ(shared.kept, 0xffffU);
  const Command unshare = {.address = address_, .pages = 16, .kind = CommandKind::kUnshare};
  EXPECT_EQ(program_.execute(unshare).result, 0);
  const Command moved = move(CommandKind::kMoveOut, 0, 16, 0);
  EXPECT_EQ(moved.result, 0);
  EXPECT_EQ(moved.kept, 0U);
  EXPECT_EQ(staging(0, 16), contents_);
  EXPECT_EQ(memory_of(std::stoi(child), address_, 16 * kPageBytes), contents_);
  EXPECT_EQ(move(CommandKind::kMoveBack, 0, 16, 0).result, 0);
  EXPECT_EQ(program_.ask("reap " + child), "0");
  EXPECT_EQ(bad_words(), 0U);
  leave();
}

TEST_F(InjectedAgentCommands, UnshareNothingWhereNothingIsMapped) {
  take(4);
  const Command nothing = {.address = kPageBytes, .pages = 2, .kind = CommandKind::kUnshare};
  EXPECT_EQ(program_.execute(nothing).result, EFAULT);
  EXPECT_EQ(bad_words(), 0U);
  leave();
}

TEST_F(InjectedAgentCommands, DropWhatTheStagingAreaHas) {
  take(8);
  ASSERT_EQ(move(CommandKind::kMoveOut, 0, 8, 0).result, 0);
  // The program's own copy, as a pager brings it.
  EXPECT_EQ(
      userfaultfd().copy(address_, contents_.data(), 8 * kPageBytes, uffd::Protection::kWritable),
      uffd::Outcome::kDone);
  // With EVENT_REMOVE the drop waits until somebody has read that.
  std::thread reader([fd = userfaultfd()]() mutable {
    std::array<uffd_msg, 1> message;
    while (fd.read(message) == 0) std::this_thread::yield();
    EXPECT_EQ(message[0].event, UFFD_EVENT_REMOVE);
  });
  const Command drop = {.address = program_.agent().staging_address, .pages = 8};
  EXPECT_EQ(program_.execute(drop).result, 0);
  reader.join();
  // Free again.
  EXPECT_EQ(move(CommandKind::kMoveOut, 0, 8, 0).result, 0);
  EXPECT_EQ(move(CommandKind::kMoveBack, 0, 8, 0).result, 0);
  EXPECT_EQ(bad_words(), 0U);
  leave();
}

TEST_F(InjectedAgentCommands, SayWhenAnEventHasNotBeenRead) {
  take(8);
  const uint64_t other = program_.ask_number("map 4");
  expect_done(userfaultfd().register_range(other, 4 * kPageBytes));
  std::thread unmapper([&] { program_.ask("unmap " + std::to_string(other) + " 4"); });
  program_.await_call(SYS_munmap);  // which waits
  pollfd event{program_.agent().userfaultfd.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&event, 1, 10'000), 1);
  const Command refused = move(CommandKind::kMoveOut, 0, 8, 0);
  EXPECT_EQ(refused.result, EAGAIN);
  EXPECT_EQ(refused.kept, 0xffU);
  std::array<uffd_msg, 1> message;
  auto fd = userfaultfd();
  EXPECT_EQ(fd.read(message), 1U);
  EXPECT_EQ(message[0].event, UFFD_EVENT_UNMAP);
  unmapper.join();
  EXPECT_EQ(move(CommandKind::kMoveOut, 0, 8, 0).result, 0);
  EXPECT_EQ(move(CommandKind::kMoveBack, 0, 8, 0).result, 0);
  EXPECT_EQ(bad_words(), 0U);
  leave();
}

TEST_F(InjectedAgentCommands, RefuseWhatTheyDoNotKnow) {
  take(1);
  EXPECT_EQ(program_.execute({.kind = CommandKind::kPoison}).result, EINVAL);
  EXPECT_EQ(program_.execute({.kind = static_cast<CommandKind>(99)}).result, EINVAL);
  leave();
}

}  // namespace
}  // namespace farpage::test
