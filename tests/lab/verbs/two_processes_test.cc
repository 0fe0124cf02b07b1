// Verbs between this process and a memory node process on the same SoftRoCE device. Runs in the
// lab.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <map>
#include <numeric>

#include "tests/lab/verbs/client.h"

namespace farpage::lab {
namespace {

using rdma::CompletionStatus;
using rdma::Operation;
using rdma::PollMode;

class TwoProcesses : public ::testing::Test {
 protected:
  void start_node(const std::vector<std::string>& arguments = {}) {
    auto node = NodeLink::start(arguments);
    ASSERT_TRUE(node) << node.error().message();
    node_ = std::make_unique<NodeLink>(std::move(*node));
    auto lease = node_->expose();
    ASSERT_TRUE(lease) << lease.error().message();
    lease_ = *lease;
  }
  void connect() {
    const auto connected = client_.connect(*node_);
    ASSERT_TRUE(connected) << connected.error().message();
  }

  std::unique_ptr<NodeLink> node_;
  Lease lease_;
  Client client_;
};

TEST_F(TwoProcesses, ReadsBringThePagesOfTheNode) {
  start_node();
  connect();
  for (size_t page = 0; page < kBufferPages; ++page) {
    std::memset(client_.page(page).data(), 0, kPageBytes);
  }
  std::vector<Operation> reads;
  for (size_t page = 0; page < kBufferPages; ++page) {
    reads.push_back(client_.read(lease_, page * 3, page, 1000 + page));
  }
  ASSERT_EQ(client_.channel().post(reads), kBufferPages);
  std::map<uint64_t, int> seen;
  for (const auto& done : client_.collect(kBufferPages)) {
    EXPECT_EQ(done.status, CompletionStatus::kOk);
    ++seen[done.token];
    EXPECT_TRUE(all_bytes_are(client_.page(done.token - 1000), 0xAB)) << done.token;
  }
  EXPECT_EQ(seen.size(), kBufferPages);
}

TEST_F(TwoProcesses, WritesArriveAndEachReadGetsItsOwnBytes) {
  start_node();
  connect();
  std::vector<Operation> writes;
  for (size_t page = 0; page < kBufferPages; ++page) {
    std::memset(client_.page(page).data(), static_cast<int>(page), kPageBytes);
    writes.push_back(client_.write(lease_, page, page, page));
  }
  ASSERT_EQ(client_.channel().post(writes), kBufferPages);
  for (const auto& done : client_.collect(kBufferPages)) {
    EXPECT_EQ(done.status, CompletionStatus::kOk);
  }
  EXPECT_EQ(node_->byte_at(17 * kPageBytes + 5), 17);

  // Backwards, so that a buffer filled by another operation's READ is noticed.
  std::vector<Operation> reads;
  for (size_t page = 0; page < kBufferPages; ++page) {
    reads.push_back(client_.read(lease_, kBufferPages - 1 - page, page, page));
  }
  ASSERT_EQ(client_.channel().post(reads), kBufferPages);
  client_.collect(kBufferPages);
  for (size_t page = 0; page < kBufferPages; ++page) {
    EXPECT_TRUE(all_bytes_are(client_.page(page), static_cast<int>(kBufferPages - 1 - page)));
  }
}

TEST_F(TwoProcesses, AFullChannelTakesAPrefix) {
  client_.options.operations_in_flight = 8;
  start_node();
  connect();
  EXPECT_EQ(client_.channel().limits().operations_in_flight, 8U);
  std::vector<Operation> reads;
  for (size_t i = 0; i < 12; ++i) reads.push_back(client_.read(lease_, i, i, i));
  EXPECT_EQ(client_.channel().post(reads), 8U);
  client_.collect(8);
  EXPECT_EQ(client_.channel().post(std::span(reads).subspan(8)), 4U);
  client_.collect(4);
}

TEST_F(TwoProcesses, EveryPollModeBringsThePage) {
  start_node();
  for (const PollMode mode : {PollMode::kAdaptive, PollMode::kBusy, PollMode::kEvent}) {
    client_.options.poll_mode = mode;
    connect();
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(client_.run(client_.read(lease_, 0, 0, 7)), CompletionStatus::kOk);
    }
    std::array<rdma::Completion, 1> none;
    EXPECT_EQ(client_.channel().wait(none, kPatience), 0U) << "nothing is in flight";
  }
}

TEST_F(TwoProcesses, AWrongKeyIsRefusedAndANewChannelWorks) {
  start_node();
  connect();
  Lease wrong = lease_;
  wrong.key.value ^= 0x55;
  std::vector<Operation> reads = {client_.read(lease_, 0, 0, 0), client_.read(lease_, 1, 1, 1),
                                  client_.read(wrong, 2, 2, 2), client_.read(lease_, 3, 3, 3)};
  ASSERT_EQ(client_.channel().post(reads), 4U);
  std::array<CompletionStatus, 4> status{};
  for (const auto& done : client_.collect(4)) status.at(done.token) = done.status;
  EXPECT_THAT(status,
              ::testing::ElementsAre(CompletionStatus::kOk, CompletionStatus::kOk,
                                     CompletionStatus::kRemoteAccess, CompletionStatus::kFlushed));
  EXPECT_FALSE(client_.channel().usable());
  EXPECT_NE(client_.channel().why_broken(), "");
  EXPECT_EQ(client_.channel().post(reads), 0U);

  connect();
  EXPECT_EQ(client_.run(client_.read(lease_, 0, 0, 9)), CompletionStatus::kOk);
}

TEST_F(TwoProcesses, KeyOfAnotherBorrowerIsRefusedByTheDevice) {
  constexpr uint64_t kMine = uint64_t{7} << 32;
  constexpr uint64_t kTheirs = uint64_t{8} << 32;
  start_node();
  auto lease = node_->expose(7);
  ASSERT_TRUE(lease) << lease.error().message();
  client_.options.session = kMine | 1;
  connect();
  EXPECT_EQ(client_.run(client_.read(*lease, 0, 0, 1)), CompletionStatus::kOk);

  Client stranger;
  stranger.options.session = kTheirs | 1;
  ASSERT_TRUE(stranger.connect(*node_));
  std::memset(stranger.page(0).data(), 0x11, kPageBytes);
  EXPECT_EQ(stranger.run(stranger.read(*lease, 0, 0, 1)), CompletionStatus::kRemoteAccess);
  EXPECT_TRUE(all_bytes_are(stranger.page(0), 0x11));
  ASSERT_TRUE(stranger.connect(*node_));
  EXPECT_EQ(stranger.run(stranger.write(*lease, 0, 0, 2)), CompletionStatus::kRemoteAccess);
  EXPECT_EQ(node_->byte_at(0), 0xAB);

  // Processes related by fork are one borrower.
  Client child;
  child.options.session = kMine | 2;
  ASSERT_TRUE(child.connect(*node_));
  EXPECT_EQ(child.run(child.read(*lease, 0, 0, 1)), CompletionStatus::kOk);
  EXPECT_EQ(client_.run(client_.read(*lease, 1, 1, 2)), CompletionStatus::kOk);
}

TEST_F(TwoProcesses, BeyondTheLeaseAndAfterWithdrawalIsRefused) {
  start_node();
  connect();
  EXPECT_EQ(client_.run(client_.read(lease_, lease_.bytes / kPageBytes, 0, 1)),
            CompletionStatus::kRemoteAccess);
  connect();
  EXPECT_EQ(client_.run(client_.read(lease_, 0, 0, 2)), CompletionStatus::kOk);
  node_->withdraw(lease_.key);
  EXPECT_EQ(client_.run(client_.read(lease_, 0, 0, 3)), CompletionStatus::kRemoteAccess);
  connect();
  EXPECT_EQ(client_.run(client_.write(lease_, 0, 0, 4)), CompletionStatus::kRemoteAccess);
}

TEST_F(TwoProcesses, ANodeKilledInMidReadEndsEveryRead) {
  client_.verbs.retry_count = 1;
  start_node();
  connect();
  // Keeps the channel full until the first READ fails.
  std::map<uint64_t, int> completed;
  uint64_t posted = 0;
  bool killed = false;
  const Instant give_up = SteadyClock::read() + kPatience;
  while (SteadyClock::read() < give_up) {
    const Operation next = client_.read(lease_, posted % 256, posted % kBufferPages, posted);
    if (client_.channel().usable() && client_.channel().post({&next, 1}) == 1) ++posted;
    if (posted == 500 && !killed) {
      node_->kill_and_reap();
      killed = true;
    }
    std::array<rdma::Completion, 16> some;
    const size_t count = client_.channel().usable() && posted % 8 != 0
                             ? client_.channel().poll(some)
                             : client_.channel().wait(some, Milliseconds(100));
    for (size_t i = 0; i < count; ++i) ++completed[some[i].token];
    if (!client_.channel().usable() && completed.size() == posted) break;
  }
  EXPECT_FALSE(client_.channel().usable());
  EXPECT_GE(posted, 500U);
  EXPECT_EQ(completed.size(), posted);
  for (const auto& [token, times] : completed) EXPECT_EQ(times, 1) << "token " << token;
}

TEST_F(TwoProcesses, AKilledNodeIsToldAsPeerGone) {
  client_.verbs.retry_count = 1;
  start_node();
  connect();
  EXPECT_EQ(client_.run(client_.read(lease_, 0, 0, 1)), CompletionStatus::kOk);
  node_->kill_and_reap();
  EXPECT_EQ(client_.run(client_.read(lease_, 0, 0, 2)), CompletionStatus::kPeerGone);
}

TEST_F(TwoProcesses, OperationTimeoutIsKeptWhereTheDevicesOwnLimitIsLonger) {
  for (const PollMode mode : {PollMode::kAdaptive, PollMode::kBusy, PollMode::kEvent}) {
    client_.options.poll_mode = mode;
    client_.verbs.timeout_exponent = 20;  // 4.3 s for each of 7 attempts
    client_.verbs.retry_count = 6;
    client_.options.operation_timeout = Milliseconds(100);
    start_node();
    connect();
    node_->kill_and_reap();
    EXPECT_EQ(client_.run(client_.read(lease_, 0, 0, 1)), CompletionStatus::kTimedOut);
    EXPECT_FALSE(client_.channel().usable());
  }
}

TEST_F(TwoProcesses, ARestartedNodeIsReachedWithItsNewKey) {
  start_node();
  connect();
  const Lease old_lease = lease_;
  client_.verbs.retry_count = 1;
  start_node();
  EXPECT_NE(client_.run(client_.read(old_lease, 0, 0, 1)), CompletionStatus::kOk);
  connect();
  EXPECT_EQ(client_.run(client_.read(lease_, 0, 0, 2)), CompletionStatus::kOk);
  EXPECT_EQ(client_.run(client_.read({lease_.address, old_lease.key, lease_.bytes}, 0, 0, 3)),
            CompletionStatus::kRemoteAccess);
}

TEST_F(TwoProcesses, TheNodeDropsPeersThatAreGoneAndKeepsTheOthers) {
  start_node({"--check-ms", "100"});
  Client gone;
  ASSERT_TRUE(gone.connect(*node_));
  connect();
  EXPECT_EQ(node_->peers(), 2);
  gone.disconnect();
  const Instant give_up = SteadyClock::read() + kPatience;
  while (node_->peers() != 1 && SteadyClock::read() < give_up) {
    // Traffic continues: probes and READs share the queue pair.
    EXPECT_EQ(client_.run(client_.read(lease_, 0, 0, 1)), CompletionStatus::kOk);
  }
  EXPECT_EQ(node_->peers(), 1);
  EXPECT_EQ(client_.run(client_.read(lease_, 0, 0, 2)), CompletionStatus::kOk);
}

TEST_F(TwoProcesses, APeerOverTheLimitIsRefusedWithTheReason) {
  start_node({"--max-peers", "1"});
  connect();
  Client second;
  const auto refused = second.connect(*node_);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("max_peers"));
  EXPECT_EQ(client_.run(client_.read(lease_, 0, 0, 1)), CompletionStatus::kOk);
}

TEST_F(TwoProcesses, WrongOptionsAreRefusedByName) {
  start_node();
  const auto refusal = [&](auto change) {
    Client client;
    change(client.verbs);
    const auto connected = client.connect(*node_);
    return connected ? std::string("connected") : connected.error().message();
  };
  using rdma::VerbsOptions;
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal([](VerbsOptions& o) { o.retry_count = 7; }), HasSubstr("retry_count 7"));
  EXPECT_THAT(refusal([](VerbsOptions& o) { o.device = "mlx9_9"; }), HasSubstr("mlx9_9"));
  EXPECT_THAT(refusal([](VerbsOptions& o) { o.device_port = 2; }), HasSubstr("port 2"));
  EXPECT_THAT(refusal([](VerbsOptions& o) { o.gid_index = 77; }), HasSubstr("gid_index 77"));
  EXPECT_THAT(refusal([](VerbsOptions& o) { o.mtu_bytes = 1500; }), HasSubstr("mtu 1500"));
}

TEST_F(TwoProcesses, ConfiguredLimitsReachTheQueuePair) {
  client_.verbs.mtu_bytes = 2048;
  client_.verbs.max_rd_atomic = 4;
  client_.verbs.cq_depth = 16;
  client_.verbs.gid_index = 0;
  start_node({"--gid", "0"});
  connect();
  EXPECT_EQ(client_.own_endpoint.mtu_bytes, 2048U);
  EXPECT_EQ(client_.own_endpoint.gid.substr(0, 4), "fe80");
  EXPECT_EQ(client_.node_endpoint.mtu_bytes, 2048U);
  EXPECT_EQ(client_.channel().limits().reads_in_flight, 4U);
  EXPECT_EQ(client_.channel().limits().operations_in_flight, 16U);
  EXPECT_EQ(client_.run(client_.read(lease_, 0, 0, 1)), CompletionStatus::kOk);
}

TEST_F(TwoProcesses, GidsOfDifferentKindsAreRefusedWithTheReason) {
  client_.verbs.gid_index = 0;  // link-local; the node chooses its IPv4-mapped one
  start_node();
  const auto refused = client_.connect(*node_);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("gid_index"));
}

TEST_F(TwoProcesses, TheDeviceIsListedWithWhatAnOperatorWantsToKnow) {
  const auto devices = rdma::list_devices();
  ASSERT_TRUE(devices) << devices.error().message();
  ASSERT_EQ(devices->size(), 1U);
  const rdma::DeviceReport& rxe = devices->front();
  EXPECT_EQ(rxe.device, "rxe0");
  EXPECT_EQ(rxe.state, "ACTIVE");
  EXPECT_EQ(rxe.link_layer, "Ethernet");
  EXPECT_EQ(rxe.unusable_because, "");
  ASSERT_GE(rxe.gids.size(), 2U);
  EXPECT_EQ(rxe.gids[1].gid, "::ffff:10.77.0.1");
  EXPECT_EQ(rxe.gids[1].type, "RoCE v2");
}

// Run with eth0 at an MTU of 1500, where SoftRoCE's largest MTU is 1024.
TEST(SmallMtu, Defect5ADeviceWithAnMtuOf1024Connects) {
  auto node = NodeLink::start();
  ASSERT_TRUE(node);
  auto lease = node->expose();
  ASSERT_TRUE(lease);
  Client client;
  const auto connected = client.connect(*node);
  ASSERT_TRUE(connected) << connected.error().message();
  EXPECT_EQ(client.own_endpoint.mtu_bytes, 1024U);
  EXPECT_EQ(client.node_endpoint.mtu_bytes, 1024U);
  EXPECT_EQ(client.run(client.read(*lease, 0, 0, 1)), CompletionStatus::kOk);
  EXPECT_TRUE(all_bytes_are(client.page(0), 0xAB));
}

}  // namespace
}  // namespace farpage::lab
