#include "node/node.h"

#include <gtest/gtest.h>

#include <future>

#include "fakes.h"

namespace farpage::node {
namespace {

class NodeTest : public testing::Test {
 protected:
  NodeTest() {
    options_.id = NodeId{"n1"};
    options_.heartbeat_interval = Milliseconds(1);
    options_.first_backoff = Milliseconds(1);
    options_.longest_backoff = Milliseconds(4);
  }

  std::unique_ptr<Node> start() {
    SlabPoolOptions pool;
    pool.lend_bytes = 2 * kSlab;
    pool.slab_bytes = kSlab;
    std::vector<std::unique_ptr<rdma::MemoryHost>> hosts;
    hosts.push_back(std::make_unique<FakeHost>(rdma::TransportKind::kTcp));
    auto made = std::move(*SlabPool::create(pool));
    pool_ = made.get();
    auto node = Node::create(options_, std::move(made), std::move(hosts), client_of(coordinator_));
    EXPECT_TRUE(node.has_value()) << (node ? "" : node.error().message());
    return std::move(*node);
  }

  FakeCoordinator coordinator_;
  NodeOptions options_;
  SlabPool* pool_ = nullptr;  // of the latest start()
};

TEST_F(NodeTest, JoinsWithWhatItOffersAndThenHeartbeats) {
  const auto node = start();
  coordinator_.wait_for_calls("heartbeat", 3);
  EXPECT_EQ(coordinator_.count("join"), 1U);
  const coordinator::NodeJoin join = coordinator_.last_join();
  EXPECT_EQ(join.id, NodeId{"n1"});
  EXPECT_NE(join.incarnation, 0U);
  EXPECT_EQ(join.capacity_bytes, 2 * kSlab);
  EXPECT_EQ(join.slab_bytes, kSlab);
  EXPECT_EQ(join.agent_url, node->agent_url());
  ASSERT_EQ(join.transports.size(), 1U);
  EXPECT_EQ(join.transports[0].kind, rdma::TransportKind::kTcp);
  const coordinator::NodeHeartbeat beat = coordinator_.last_heartbeat();
  EXPECT_EQ(beat.incarnation, join.incarnation);
  EXPECT_EQ(beat.free_slabs, 2U);
  EXPECT_EQ(beat.counters.at("farpage_node_reads_total{transport=\"tcp\"}"), 7U);
  EXPECT_EQ(node->membership(), Membership::kJoined);
}

TEST_F(NodeTest, KeepsTryingUntilTheCoordinatorIsThere) {
  coordinator_.answer_joins(fail(ErrorCode::kUnavailable, "connection refused"));
  const auto node = start();
  coordinator_.wait_for_calls("join", 5);
  EXPECT_EQ(node->membership(), Membership::kJoining);
  EXPECT_FALSE(node->report().joined);
  coordinator_.answer_joins({});
  coordinator_.wait_for_calls("heartbeat", 1);
  EXPECT_EQ(node->membership(), Membership::kJoined);
}

TEST_F(NodeTest, JoinsAgainWhenTheCoordinatorForgotIt) {
  const auto node = start();
  coordinator_.wait_for_calls("heartbeat", 1);
  const uint64_t incarnation = coordinator_.last_join().incarnation;
  coordinator_.forget_node();
  coordinator_.wait_for_calls("join", 2);
  EXPECT_EQ(coordinator_.last_join().incarnation, incarnation) << "its memory is the same";
}

TEST_F(NodeTest, CoordinatorAwayRevokesNothing) {
  const auto node = start();
  coordinator_.wait_for_calls("heartbeat", 1);
  ASSERT_TRUE(pool_->lend(0, Seconds(1)).has_value());
  coordinator_.answer_heartbeats(fail(ErrorCode::kUnavailable, "connection refused"));
  coordinator_.wait_for_calls("heartbeat", coordinator_.count("heartbeat") + 5);
  EXPECT_EQ(pool_->counts().leased, 1U);
  EXPECT_FALSE(node->report().joined);
  EXPECT_EQ(coordinator_.count("join"), 1U);
  coordinator_.answer_heartbeats({});
  coordinator_.wait_for_calls("heartbeat", coordinator_.count("heartbeat") + 2);
  EXPECT_TRUE(node->report().joined);
}

TEST_F(NodeTest, RefusalBeforeTheFirstJoinIsFinal) {
  coordinator_.answer_joins(fail(ErrorCode::kDenied, "a bearer token is needed"));
  std::promise<Error> refused;
  options_.on_refused = [&](const Error& error) { refused.set_value(error); };
  const auto node = start();
  EXPECT_EQ(refused.get_future().get().code, ErrorCode::kDenied);
  EXPECT_EQ(node->membership(), Membership::kRefused);
  EXPECT_TRUE(node->leave(Milliseconds(0)));
  EXPECT_EQ(coordinator_.calls_without_heartbeats(), (std::vector<std::string>{"join"}));
}

TEST_F(NodeTest, LeavesInOrderWhenNothingIsLent) {
  const auto node = start();
  coordinator_.wait_for_calls("heartbeat", 1);
  EXPECT_TRUE(node->leave(Seconds(30)));
  EXPECT_EQ(coordinator_.calls_without_heartbeats(),
            (std::vector<std::string>{"join", "drain", "remove"}));
  EXPECT_EQ(node->membership(), Membership::kLeft);
}

TEST_F(NodeTest, LeavesByForceWhenBorrowersStay) {
  const auto node = start();
  coordinator_.wait_for_calls("heartbeat", 1);
  Lender& lender = node->lender();
  ASSERT_TRUE(lender.lease(0, {RegionId{"r1"}, SlabIndex{0}, 0}).has_value());
  EXPECT_FALSE(node->leave(Milliseconds(1)));
  EXPECT_EQ(coordinator_.calls_without_heartbeats(),
            (std::vector<std::string>{"join", "drain", "remove force"}));
}

TEST_F(NodeTest, TellsThatItLeavesUntilTheCoordinatorKnows) {
  const auto node = start();
  coordinator_.wait_for_calls("heartbeat", 1);
  const auto lease = node->lender().lease(0, {RegionId{"r1"}, SlabIndex{0}, 0});
  ASSERT_TRUE(lease.has_value());
  coordinator_.answer_drains(fail(ErrorCode::kUnavailable, "another one is being elected"));
  auto left = std::async(std::launch::async, [&] { return node->leave(Seconds(30)); });
  coordinator_.wait_for_calls("drain", 3);
  coordinator_.answer_drains({});
  const size_t failed = coordinator_.count("drain");
  coordinator_.wait_for_calls("heartbeat", coordinator_.count("heartbeat") + 5);
  EXPECT_LE(coordinator_.count("drain"), failed + 2) << "once more, and one that was under way";
  ASSERT_TRUE(node->lender().revoke(0, lease->generation).has_value());
  EXPECT_TRUE(left.get());
}

TEST_F(NodeTest, ForgottenWhileLeavingDoesNotJoinAgain) {
  const auto node = start();
  coordinator_.wait_for_calls("heartbeat", 1);
  const auto lease = node->lender().lease(0, {RegionId{"r1"}, SlabIndex{0}, 0});
  ASSERT_TRUE(lease.has_value());
  auto left = std::async(std::launch::async, [&] { return node->leave(Seconds(30)); });
  coordinator_.wait_for_calls("drain", 1);
  coordinator_.answer_heartbeats(fail(ErrorCode::kNotFound, "join again"));
  coordinator_.wait_for_calls("heartbeat", coordinator_.count("heartbeat") + 3);
  ASSERT_TRUE(node->lender().revoke(0, lease->generation).has_value());
  EXPECT_TRUE(left.get());
  EXPECT_EQ(coordinator_.count("join"), 1U);
}

TEST_F(NodeTest, RestartIsANewIncarnation) {
  auto former = start();
  coordinator_.wait_for_calls("join", 1);
  const uint64_t first = coordinator_.last_join().incarnation;
  former.reset();
  const auto node = start();
  coordinator_.wait_for_calls("join", 2);
  EXPECT_NE(coordinator_.last_join().incarnation, first);
}

TEST_F(NodeTest, AdvertisedHostIsInTheAgentUrl) {
  options_.advertise_host = "node-1.example";
  EXPECT_EQ(start()->agent_url().find("http://node-1.example:"), 0U);
  options_.advertise_host = "fe80::1";
  EXPECT_EQ(start()->agent_url().find("http://[fe80::1]:"), 0U);
}

TEST_F(NodeTest, TakenPortIsRefusedWithTheCure) {
  const auto first = start();
  const std::string url = first->agent_url();
  options_.agent.port = static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1)));
  SlabPoolOptions pool;
  pool.lend_bytes = kSlab;
  pool.slab_bytes = kSlab;
  const auto second =
      Node::create(options_, std::move(*SlabPool::create(pool)), {}, client_of(coordinator_));
  ASSERT_FALSE(second.has_value());
  EXPECT_NE(second.error().context.find("--listen-agent"), std::string::npos);
}

}  // namespace
}  // namespace farpage::node
