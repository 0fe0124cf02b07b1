#include "node/lender.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "fakes.h"

namespace farpage::node {
namespace {

coordinator::SlabLeaseRequest borrower(const std::string& region, uint32_t slab = 0) {
  return {RegionId{region}, SlabIndex{slab}, 0};
}

coordinator::SlabLeaseRequest borrower_of_group(const std::string& region, uint32_t group) {
  coordinator::SlabLeaseRequest request = borrower(region);
  request.session_group = group;
  return request;
}

class LenderTest : public testing::Test {
 protected:
  LenderTest() {
    SlabPoolOptions options;
    options.lend_bytes = 2 * kSlab;
    options.slab_bytes = kSlab;
    options.generation_base = 10;
    pool_ = std::move(*SlabPool::create(options));
    for (const auto kind : {rdma::TransportKind::kTcp, rdma::TransportKind::kShm}) {
      auto host = std::make_unique<FakeHost>(kind);
      fakes_.push_back(host.get());
      hosts_.push_back(std::move(host));
    }
    lender_.emplace(*pool_, hosts_,
                    Lender::Options{.session_groups = [this] { return groups_; },
                                    .unknown_for = Milliseconds(20)});
  }
  FakeHost& tcp() { return *fakes_[0]; }
  FakeHost& shm() { return *fakes_[1]; }

  std::unique_ptr<SlabPool> pool_;
  std::vector<FakeHost*> fakes_;
  std::vector<std::unique_ptr<rdma::MemoryHost>> hosts_;
  std::vector<uint32_t> groups_;
  std::optional<Lender> lender_;
};

TEST_F(LenderTest, EachLeaseHasOneKeyOnEveryWire) {
  const auto lease = lender_->lease(1, borrower("r1"));
  ASSERT_TRUE(lease.has_value()) << lease.error().message();
  EXPECT_EQ(lease->bytes, kSlab);
  EXPECT_EQ(lease->generation, Generation{11});
  ASSERT_EQ(lease->rkeys.size(), 2U);
  const auto memory = tcp().memory_of(lease->rkeys.at(rdma::TransportKind::kTcp));
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(reinterpret_cast<uint64_t>(memory->bytes.data()), lease->address.value);
  EXPECT_TRUE(shm().memory_of(lease->rkeys.at(rdma::TransportKind::kShm)).has_value());
}

TEST_F(LenderTest, SameBorrowerGetsTheSameLeaseAgainAndOthersNone) {
  const auto first = lender_->lease(0, borrower("r1"));
  const auto repeated = lender_->lease(0, borrower("r1"));
  ASSERT_TRUE(first.has_value() && repeated.has_value());
  EXPECT_EQ(first->generation, repeated->generation);
  EXPECT_EQ(first->rkeys, repeated->rkeys);
  EXPECT_EQ(tcp().exposed(), 1U);
  EXPECT_EQ(lender_->lease(0, borrower("r1", 1)).error().code, ErrorCode::kConflict);
  EXPECT_EQ(lender_->lease(0, borrower("r2")).error().code, ErrorCode::kConflict);
}

// As of a coordinator that has lost its state.
TEST_F(LenderTest, SlabWhoseBorrowerIsGoneIsLentWhenItIsWantedAgainLater) {
  const auto first = lender_->lease(0, borrower_of_group("r1", 7));
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(lender_->lease(0, borrower_of_group("r2", 8)).error().code, ErrorCode::kConflict);
  std::this_thread::sleep_for(Milliseconds(21));
  const auto second = lender_->lease(0, borrower_of_group("r2", 8));
  ASSERT_TRUE(second.has_value()) << second.error().message();
  EXPECT_GT(second->generation, first->generation);
  EXPECT_FALSE(tcp().memory_of(first->rkeys.at(rdma::TransportKind::kTcp)).has_value());
}

TEST_F(LenderTest, SlabIsKeptForABorrowerThatHasASessionOrWhoseSessionsAreNotKnown) {
  ASSERT_TRUE(lender_->lease(0, borrower_of_group("r1", 7)).has_value());
  ASSERT_TRUE(lender_->lease(1, borrower("r1", 1)).has_value());  // of no group
  EXPECT_EQ(lender_->lease(0, borrower("r2")).error().code, ErrorCode::kConflict);
  groups_ = {7};  // it was interrupted only
  std::this_thread::sleep_for(Milliseconds(21));
  EXPECT_EQ(lender_->lease(0, borrower("r2")).error().code, ErrorCode::kConflict);
  groups_ = {};
  EXPECT_EQ(lender_->lease(0, borrower("r2")).error().code, ErrorCode::kConflict)
      << "it counts from the last time that it had one";
  EXPECT_EQ(lender_->lease(1, borrower("r2")).error().code, ErrorCode::kConflict);
  std::this_thread::sleep_for(Milliseconds(21));
  EXPECT_EQ(lender_->lease(1, borrower("r2")).error().code, ErrorCode::kConflict);
}

TEST_F(LenderTest, RevokeWithdrawsEverywhereAndTwiceIsOnce) {
  const auto lease = lender_->lease(0, borrower("r1"));
  ASSERT_TRUE(lease.has_value());
  ASSERT_TRUE(lender_->revoke(0, lease->generation).has_value());
  EXPECT_EQ(tcp().exposed(), 0U);
  EXPECT_EQ(shm().exposed(), 0U);
  EXPECT_TRUE(lender_->revoke(0, lease->generation).has_value());
}

TEST_F(LenderTest, StaleGenerationRevokesNothing) {
  const auto first = lender_->lease(0, borrower("r1"));
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(lender_->revoke(0, first->generation).has_value());
  const auto second = lender_->lease(0, borrower("r2"));
  ASSERT_TRUE(second.has_value());
  EXPECT_GT(second->generation, first->generation);
  EXPECT_EQ(lender_->revoke(0, first->generation).error().code, ErrorCode::kConflict);
  EXPECT_EQ(tcp().exposed(), 1U);
  EXPECT_EQ(lender_->revoke(9, first->generation).error().code, ErrorCode::kNotFound);
}

TEST_F(LenderTest, WireThatCannotRegisterLeavesNoLeaseBehind) {
  shm().fail_from_now_on(true);
  const auto refused = lender_->lease(0, borrower("r1"));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_NE(refused.error().context.find("shm"), std::string::npos) << refused.error().context;
  EXPECT_EQ(tcp().exposed(), 0U) << "the wires before it are withdrawn";
  shm().fail_from_now_on(false);
  EXPECT_TRUE(lender_->lease(0, borrower("r1")).has_value());
}

TEST_F(LenderTest, NextBorrowerNeverSeesTheBytesOfTheFormer) {
  for (const char* region : {"r1", "r2", "r3"}) {
    const auto lease = lender_->lease(0, borrower(region));
    ASSERT_TRUE(lease.has_value());
    const auto memory = tcp().memory_of(lease->rkeys.at(rdma::TransportKind::kTcp));
    ASSERT_TRUE(memory.has_value());
    for (const std::byte byte : memory->bytes) ASSERT_EQ(byte, std::byte{0}) << region;
    std::memset(memory->bytes.data(), 0xAB, memory->bytes.size());
    ASSERT_TRUE(lender_->revoke(0, lease->generation).has_value());
  }
}

TEST_F(LenderTest, LeavingRefusesNewLeasesAndWaitsForTheOthers) {
  const auto lease = lender_->lease(0, borrower("r1"));
  ASSERT_TRUE(lease.has_value());
  EXPECT_EQ(lender_->lendable_slabs(), 1U);
  lender_->refuse_new_leases();
  EXPECT_EQ(lender_->lendable_slabs(), 0U);
  EXPECT_EQ(lender_->lease(1, borrower("r1", 1)).error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(lender_->wait_until_nothing_leased(Milliseconds(1)));
  std::thread returns([&] { EXPECT_TRUE(lender_->revoke(0, lease->generation).has_value()); });
  EXPECT_TRUE(lender_->wait_until_nothing_leased(Seconds(30)));
  returns.join();
}

TEST_F(LenderTest, DestructionWithdrawsWhatIsStillLent) {
  ASSERT_TRUE(lender_->lease(0, borrower("r1")).has_value());
  lender_.reset();
  EXPECT_EQ(tcp().exposed(), 0U);
  EXPECT_EQ(shm().exposed(), 0U);
}

TEST_F(LenderTest, QueuePairsNeedAVerbsHost) {
  EXPECT_EQ(lender_->connect({}).error().code, ErrorCode::kUnsupported);
  std::vector<std::unique_ptr<rdma::MemoryHost>> verbs;
  verbs.push_back(std::make_unique<FakeHost>(rdma::TransportKind::kVerbs));
  Lender lender(*pool_, verbs, {});
  rdma::QueuePairEndpoint peer;
  peer.qpn = 41;
  EXPECT_EQ(lender.connect(peer)->qpn, 42U);
}

}  // namespace
}  // namespace farpage::node
