// An agent for a child that has been forked while its program had one: its memory is registered
// with a userfaultfd that the kernel gave to the reader of the program's events.
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include "base/mapping.h"
#include "base/strong.h"
#include "inject/injected_agent.h"
#include "inject/process_tree.h"
#include "taken_program.h"
#include "uffd/agent_ring.h"
#include "uffd/kernel_abi.h"
#include "uffd/userfaultfd.h"

namespace farpage::test {
namespace {

using uffd::handover::Command;
using uffd::handover::CommandKind;

class InheritedUserfaultfd : public testing::Test {
 protected:
  static constexpr uint32_t kPages = 16;

  void SetUp() override {
    if (const auto why = why_no_injection()) GTEST_SKIP() << *why;
    address_ = program_.ask_number("map " + std::to_string(kPages));
    contents_ = memory_of(program_.pid(), address_, kPages * kPageBytes);
    program_.inject();
    ASSERT_TRUE(userfaultfd().register_range(address_, kPages * kPageBytes).has_value());
    fork();
  }
  void TearDown() override {
    if (why_no_injection()) return;
    EXPECT_TRUE(userfaultfd().unregister_range(address_, kPages * kPageBytes).has_value());
    program_.withdraw();
    EXPECT_EQ(program_.ask("reap " + std::to_string(child_)), "0");
  }

  uffd::Userfaultfd userfaultfd() {
    Result<Fd> copy = program_.agent().userfaultfd.duplicate();
    EXPECT_TRUE(copy.has_value());
    return uffd::Userfaultfd::adopt(std::move(*copy), program_.agent().features);
  }
  std::string maps_of_child() const {
    std::ifstream file("/proc/" + std::to_string(child_) + "/maps");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  inject::InheritedUserfaultfd of_program() {
    return {program_.agent().userfaultfd.get(), program_.agent().features};
  }
  inject::InheritedUserfaultfd of_child() { return {inherited_->fd(), inherited_->features()}; }

  TakenProgram program_;
  uint64_t address_ = 0;
  std::string contents_;
  pid_t child_ = 0;
  std::optional<uffd::Userfaultfd> inherited_;

 private:
  // The fork waits until somebody has read its event.
  void fork() {
    std::thread reader([&] {
      auto events = userfaultfd();
      std::array<uffd_msg, 1> message;
      while (!inherited_) {
        pollfd event{events.fd(), POLLIN, 0};
        (void)::poll(&event, 1, -1);
        if (events.read(message) == 1) inherited_ = events.child_of(message[0]);
      }
    });
    child_ = std::stoi(program_.ask("fork"));
    reader.join();
  }
};

TEST_F(InheritedUserfaultfd, IsFoundAmongOthersByTheAgentAndMovesPages) {
  const std::string maps = maps_of_child();
  auto agent = inject::inject(child_, {.inherited = {of_program(), of_child(), of_program()}});
  ASSERT_TRUE(agent.has_value()) << agent.error().message();
  EXPECT_EQ(agent->inherited, 1U);
  EXPECT_EQ(agent->features, program_.agent().features);
  EXPECT_NE(maps_of_child(), maps);
  {
    uffd::AgentRingProducer commands(
        std::move(*Mapping::shared(agent->ring.get(), agent->ring_bytes)), [] { return true; });
    const auto execute = [&](Command command) {
      EXPECT_TRUE(commands.begin({&command, 1}, std::chrono::seconds(10)).has_value());
      EXPECT_TRUE(commands.await({&command, 1}, std::chrono::seconds(10)).has_value());
      return command;
    };
    const Command out{.address = address_, .pages = kPages, .kind = CommandKind::kMoveOut};
    const Command back{.address = address_, .pages = kPages, .kind = CommandKind::kMoveBack};
    EXPECT_EQ(execute(out).result, EBUSY);  // its parent has them, too
    EXPECT_EQ(execute({.address = address_, .pages = kPages, .kind = CommandKind::kUnshare}).result,
              0);
    EXPECT_EQ(execute(out).result, 0);
    EXPECT_EQ(memory_of(child_, agent->staging_address, kPages * kPageBytes), contents_);
    EXPECT_EQ(execute(back).result, 0);
    EXPECT_EQ(memory_of(child_, address_, kPages * kPageBytes), contents_);
  }
  const Status withdrawn = inject::withdraw(*agent);
  ASSERT_TRUE(withdrawn.has_value()) << withdrawn.error().message();
  EXPECT_EQ(maps_of_child(), maps);
}

TEST_F(InheritedUserfaultfd, OfAnotherProcessIsRefusedAndNothingHasChanged) {
  const std::string maps = maps_of_child();
  const auto agent = inject::inject(child_, {.inherited = {of_program(), of_program()}});
  ASSERT_FALSE(agent.has_value());
  EXPECT_EQ(agent.error().code, ErrorCode::kConflict);
  EXPECT_NE(agent.error().message().find("none of the memory that is served"), std::string::npos)
      << agent.error().message();
  EXPECT_EQ(maps_of_child(), maps);
}

TEST_F(InheritedUserfaultfd, IsSeenFromOutside) {
  const auto child = inject::ProcessFiles::open(child_);
  ASSERT_TRUE(child.has_value());
  EXPECT_TRUE(inject::has_registered_memory(*child));
  TakenProgram other;
  const auto stranger = inject::ProcessFiles::open(other.pid());
  ASSERT_TRUE(stranger.has_value());
  EXPECT_FALSE(inject::has_registered_memory(*stranger));
}

}  // namespace
}  // namespace farpage::test
