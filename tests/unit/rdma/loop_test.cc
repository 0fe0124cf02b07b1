#include "rdma/loop/loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/unit/rdma/test_slab.h"

namespace farpage::rdma {
namespace {

class LoopTest : public ::testing::Test {
 protected:
  void start(const LoopFaults& faults, uint64_t seed = 7) {
    network_ = make_loop_network({seed, &clock_, faults});
    host_ = make_loop_memory_host(network_, "node").value();
    slab_.lend_on(*host_);
    channel_ = connect();
  }
  std::unique_ptr<Channel> connect() {
    return make_loop_transport(network_)->connect(host_->address(), borrower_.options, {}).value();
  }
  std::vector<Operation> reads(size_t count) const {
    std::vector<Operation> operations;
    for (size_t i = 0; i < count; ++i) operations.push_back(slab_.read(i, borrower_.page(i), i));
    return operations;
  }
  // Polls until all are done; returns their order, each with the number of its poll.
  std::vector<std::pair<uint64_t, int>> order_of(size_t count) {
    std::vector<std::pair<uint64_t, int>> order;
    for (int poll = 1; order.size() < count && poll < 10'000; ++poll) {
      std::array<Completion, 4> done;
      const size_t stored = channel_->poll(done);
      for (size_t i = 0; i < stored; ++i) order.emplace_back(done[i].token, poll);
    }
    return order;
  }

  ManualClock clock_;
  TestSlab slab_{64};
  TestBorrower borrower_;
  std::shared_ptr<LoopNetwork> network_;
  std::unique_ptr<MemoryHost> host_;
  std::unique_ptr<Channel> channel_;
};

TEST_F(LoopTest, SameSeedIsTheSameRunAndAnotherSeedIsNot) {
  LoopFaults faults;
  faults.delay_polls = 20;
  faults.reorder = true;
  const auto run_with = [&](uint64_t seed) {
    host_.reset();
    start(faults, seed);
    EXPECT_EQ(channel_->post(reads(32)), 32U);
    return order_of(32);
  };
  const auto first = run_with(1);
  EXPECT_EQ(run_with(1), first);
  EXPECT_NE(run_with(2), first);
}

TEST_F(LoopTest, KeepsTheOrderUnlessToldNotTo) {
  LoopFaults faults;
  faults.delay_polls = 20;
  start(faults);
  ASSERT_EQ(channel_->post(reads(32)), 32U);
  const auto order = order_of(32);
  ASSERT_EQ(order.size(), 32U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_F(LoopTest, BytesOfAReadAreNotThereBeforeItsCompletion) {
  LoopFaults faults;
  faults.delay_time = Seconds(1);
  start(faults);
  ASSERT_EQ(channel_->post(reads(8)), 8U);
  std::array<Completion, 8> done;
  size_t completed = channel_->poll(done);
  for (size_t i = completed; i < 8; ++i) EXPECT_NE(borrower_.page(i)[0], std::byte(i + 1));
  clock_.advance(Seconds(1));
  completed += channel_->poll(std::span(done).subspan(completed));
  EXPECT_EQ(completed, 8U);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(borrower_.page(i)[0], std::byte(i + 1));
}

TEST_F(LoopTest, LostOperationTimesOutOnTheClockAndBreaksTheChannel) {
  LoopFaults faults;
  faults.lost_per_mille = 1000;
  start(faults);
  ASSERT_EQ(channel_->post(reads(2)), 2U);
  std::array<Completion, 4> done;
  EXPECT_EQ(channel_->poll(done), 0U);
  clock_.advance(borrower_.options.operation_timeout);
  ASSERT_EQ(channel_->poll(done), 2U);
  EXPECT_EQ(done[0].status, CompletionStatus::kTimedOut);
  EXPECT_EQ(done[1].status, CompletionStatus::kFlushed);
  EXPECT_FALSE(channel_->usable());
  EXPECT_EQ(channel_->post(reads(1)), 0U);
}

TEST_F(LoopTest, StalledHostAnswersWhenItGoesOn) {
  start({});
  network_->set_stalled("node", true);
  ASSERT_EQ(channel_->post(reads(1)), 1U);
  std::array<Completion, 1> done;
  EXPECT_EQ(channel_->poll(done), 0U);
  network_->set_stalled("node", false);
  ASSERT_EQ(channel_->poll(done), 1U);
  EXPECT_EQ(done[0].status, CompletionStatus::kOk);
}

TEST_F(LoopTest, InjectedFailureReachesJustSoManyOperations) {
  start({});
  network_->fail_next(CompletionStatus::kRemoteAccess, 2);
  ASSERT_EQ(channel_->post(reads(3)), 3U);
  std::array<Completion, 3> done;
  ASSERT_EQ(channel_->poll(done), 3U);
  EXPECT_EQ(done[0].status, CompletionStatus::kRemoteAccess);
  EXPECT_EQ(done[1].status, CompletionStatus::kRemoteAccess);
  EXPECT_EQ(done[2].status, CompletionStatus::kOk);
  EXPECT_TRUE(channel_->usable());
  EXPECT_NE(borrower_.page(0)[0], std::byte{1});
}

TEST_F(LoopTest, InjectedDeathBreaksTheChannelAndFlushesTheRest) {
  start({});
  network_->fail_next(CompletionStatus::kPeerGone, 1);
  ASSERT_EQ(channel_->post(reads(3)), 3U);
  std::array<Completion, 3> done;
  ASSERT_EQ(channel_->poll(done), 3U);
  EXPECT_EQ(done[0].status, CompletionStatus::kPeerGone);
  EXPECT_EQ(done[1].status, CompletionStatus::kFlushed);
  EXPECT_EQ(done[2].status, CompletionStatus::kFlushed);
  EXPECT_FALSE(channel_->usable());
  // The host still runs: a new channel works.
  const auto again = connect();
  EXPECT_EQ(run(*again, slab_.read(0, borrower_.page(0))), CompletionStatus::kOk);
}

TEST_F(LoopTest, SomeOfManyOperationsFailAtTheGivenRate) {
  LoopFaults faults;
  faults.failed_per_mille = 250;
  start(faults);
  int failed = 0;
  for (int i = 0; i < 1000; ++i)
    failed += run(*channel_, slab_.read(0, borrower_.page(0))) == CompletionStatus::kOk ? 0 : 1;
  EXPECT_GT(failed, 150);
  EXPECT_LT(failed, 350);
}

TEST_F(LoopTest, DelayedWriteOfTheFormerChannelOfASessionNeverHappens) {
  borrower_.options.session = 9;
  LoopFaults faults;
  start(faults);
  faults.delay_time = Milliseconds(100);
  network_->set_faults(faults);
  std::fill_n(borrower_.page(0).begin(), kPageBytes, std::byte{0xAA});
  std::fill_n(borrower_.page(1).begin(), kPageBytes, std::byte{0xBB});
  const Operation older = slab_.write(3, borrower_.page(0));
  ASSERT_EQ(channel_->post({&older, 1}), 1U);
  network_->set_faults({});
  const auto newer = connect();
  ASSERT_EQ(run(*newer, slab_.write(3, borrower_.page(1))), CompletionStatus::kOk);
  clock_.advance(Milliseconds(200));
  std::array<Completion, 2> done;
  ASSERT_EQ(channel_->poll(done), 1U);
  EXPECT_EQ(done[0].status, CompletionStatus::kPeerGone);
  EXPECT_FALSE(channel_->usable());
  EXPECT_EQ(slab_.memory.data()[3 * kPageBytes], std::byte{0xBB});
}

TEST_F(LoopTest, NameOfALivingHostIsTaken) {
  start({});
  const auto second = make_loop_memory_host(network_, "node");
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
  host_.reset();
  EXPECT_TRUE(make_loop_memory_host(network_, "node").has_value());
}

}  // namespace
}  // namespace farpage::rdma
