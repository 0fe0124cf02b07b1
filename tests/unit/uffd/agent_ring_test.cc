#include "uffd/agent_ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/futex.h"
#include "base/mapping.h"

namespace farpage::uffd {
namespace {

using handover::AgentRing;
using handover::Command;
using handover::CommandKind;
using handover::kRingCommands;

Mapping make_ring(const Fd& fd) {
  return std::move(*Mapping::shared(fd.get(), sizeof(AgentRing)));
}

// The other end, like the shim's agent: takes commands in order; a result depends on its command.
class ThreadAgent {
 public:
  explicit ThreadAgent(const Fd& fd)
      : memory_(make_ring(fd)), ring_(*reinterpret_cast<AgentRing*>(memory_.data())) {
    thread_ = std::thread([this] {
      while (!stop_) {
        const uint32_t tail = ring_.tail.load();
        if (ring_.head.load() == tail) {
          std::this_thread::yield();
          continue;
        }
        Command& command = ring_.commands[tail % kRingCommands];
        seen_.push_back(command.address);
        command.result = static_cast<int32_t>(command.address % 5);
        ring_.tail.store(tail + 1);
        if (ring_.pager_sleeps.load() != 0) futex_wake(ring_.tail, FutexScope::kShared);
      }
    });
  }
  ~ThreadAgent() { finish(); }
  std::vector<uint64_t> finish() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    return seen_;
  }

 private:
  Mapping memory_;
  AgentRing& ring_;
  std::atomic<bool> stop_{false};
  std::vector<uint64_t> seen_;
  std::thread thread_;
};

Status run(AgentRingProducer& producer, std::span<Command> commands) {
  FARPAGE_TRY_VOID(producer.begin(commands, Seconds(60)));
  return producer.await(commands, Seconds(60));
}

TEST(AgentRing, ResultsComeBackWithTheirCommandsAcrossManyWraps) {
  const Fd fd = std::move(*create_memfd("ring", sizeof(AgentRing)));
  ThreadAgent agent(fd);
  AgentRingProducer producer(make_ring(fd), [] { return true; });
  uint64_t next = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<Command> commands(300);
    for (Command& command : commands) command.address = next++;
    ASSERT_TRUE(run(producer, commands).has_value());
    for (const Command& command : commands)
      ASSERT_EQ(command.result, static_cast<int32_t>(command.address % 5));
  }
  const std::vector<uint64_t> seen = agent.finish();
  ASSERT_EQ(seen.size(), next);
  for (uint64_t i = 0; i < next; ++i) ASSERT_EQ(seen[i], i);
}

TEST(AgentRing, DeadTargetEndsTheWait) {
  const Fd fd = std::move(*create_memfd("ring", sizeof(AgentRing)));
  AgentRingProducer producer(make_ring(fd), [] { return false; });
  Command command;
  ASSERT_TRUE(producer.begin({&command, 1}, Seconds(60)));
  const Status status = producer.await({&command, 1}, Milliseconds(1));
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
}

TEST(AgentRing, AStoppedTargetAnswersLater) {
  const Fd fd = std::move(*create_memfd("ring", sizeof(AgentRing)));
  AgentRingProducer producer(make_ring(fd), [] { return true; });
  Command command{.address = 3};
  ASSERT_TRUE(producer.begin({&command, 1}, Seconds(60)));
  const Status early = producer.await({&command, 1}, Milliseconds(1));
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, ErrorCode::kTimedOut);
  ThreadAgent agent(fd);
  ASSERT_TRUE(producer.await({&command, 1}, Seconds(60)));
  EXPECT_EQ(command.result, 3);
}

// A fault worker posts; it must not wait until the agent has dropped the evictor's pages.
TEST(AgentRing, PostDoesNotWaitForARunAndItsResultsStay) {
  const Fd fd = std::move(*create_memfd("ring", sizeof(AgentRing)));
  const Mapping memory = make_ring(fd);
  AgentRing& ring = *reinterpret_cast<AgentRing*>(memory.data());
  AgentRingProducer producer(make_ring(fd), [] { return true; });
  std::vector<Command> commands(4);
  std::jthread runner([&] { EXPECT_TRUE(run(producer, commands)); });
  while (ring.head.load() < commands.size()) std::this_thread::yield();
  // The agent has executed nothing yet. The rest of the ring is free, the slots of run() are not.
  for (size_t i = commands.size(); i < kRingCommands; ++i) ASSERT_TRUE(producer.post({}));
  EXPECT_FALSE(producer.post({}));
  for (uint32_t i = 0; i < commands.size(); ++i)
    ring.commands[i].result = static_cast<int32_t>(i) + 10;
  ring.tail.store(ring.head.load());
  futex_wake(ring.tail, FutexScope::kShared);
  runner.join();
  for (size_t i = 0; i < commands.size(); ++i)
    EXPECT_EQ(commands[i].result, static_cast<int32_t>(i) + 10);
}

TEST(AgentRing, RunWaitsForRoomBehindPosts) {
  const Fd fd = std::move(*create_memfd("ring", sizeof(AgentRing)));
  AgentRingProducer producer(make_ring(fd), [] { return true; });
  for (uint32_t i = 0; i < kRingCommands; ++i) ASSERT_TRUE(producer.post({}));
  ThreadAgent agent(fd);
  Command command{.address = 3};
  ASSERT_TRUE(run(producer, {&command, 1}));
  EXPECT_EQ(command.result, 3);
}

TEST(AgentRing, TellsAtWhichCommandTheAgentStands) {
  const Fd fd = std::move(*create_memfd("ring", sizeof(AgentRing)));
  AgentRingProducer producer(make_ring(fd), [] { return true; });
  EXPECT_FALSE(producer.is_at(CommandKind::kDrop));
  ASSERT_TRUE(producer.post({.kind = CommandKind::kUnshare}));
  ASSERT_TRUE(producer.post({.kind = CommandKind::kDrop}));
  EXPECT_TRUE(producer.is_at(CommandKind::kUnshare));
  EXPECT_FALSE(producer.is_at(CommandKind::kDrop));
  ThreadAgent agent(fd);
  ASSERT_TRUE(producer.await_all(Seconds(60)));
  EXPECT_FALSE(producer.is_at(CommandKind::kUnshare));
  EXPECT_FALSE(producer.is_at(CommandKind::kDrop));
}

TEST(AgentRing, FullRingRefusesAnotherPost) {
  const Fd fd = std::move(*create_memfd("ring", sizeof(AgentRing)));
  AgentRingProducer producer(make_ring(fd), [] { return true; });
  for (uint32_t i = 0; i < kRingCommands; ++i) ASSERT_TRUE(producer.post({}).has_value());
  const Status status = producer.post({});
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kExhausted);
}

}  // namespace
}  // namespace farpage::uffd
