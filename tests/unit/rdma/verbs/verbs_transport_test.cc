#include "rdma/verbs/verbs_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <thread>

#include "base/mapping.h"
#include "tests/unit/rdma/verbs/fake_verbs.h"

namespace farpage::rdma::verbs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

QueuePairEndpoint node_endpoint() {
  QueuePairEndpoint node;
  node.qpn = 0x777;
  node.psn = 0x42;
  node.gid = "::ffff:10.0.0.2";
  node.mtu_bytes = 1024;
  node.max_rd_atomic = 1;
  node.max_dest_rd_atomic = 8;
  return node;
}

class VerbsChannelTest : public ::testing::Test {
 protected:
  VerbsChannelTest() {
    options_.buffer = buffer_.bytes();
    options_.operations_in_flight = 32;
  }
  ~VerbsChannelTest() override {
    channel_.reset();
    transport_.reset();
    EXPECT_EQ(fake_->state().alive, 0) << "objects were leaked";
  }

  void use(const VerbsOptions& options) {
    channel_.reset();
    transport_ = std::make_unique<VerbsTransport>(fake_, options);
  }

  Status connect() {
    TransportAddress address;
    address.kind = TransportKind::kVerbs;
    auto made = transport_->connect(address, options_, [&](const QueuePairEndpoint& ours) {
      ours_ = ours;
      return exchange_result_;
    });
    if (!made) return tl::unexpected(made.error());
    channel_ = std::move(*made);
    return {};
  }

  Operation operation(OperationKind kind, uint64_t token) {
    return {.kind = kind,
            .local = buffer_.bytes().first(kPageBytes),
            .remote = {0x10000 + token},
            .key = {0x55},
            .generation = {1},
            .token = token};
  }
  size_t post(OperationKind kind, size_t count) {
    std::vector<Operation> operations;
    for (size_t i = 0; i < count; ++i) operations.push_back(operation(kind, 100 + next_token_++));
    return channel_->post(operations);
  }
  std::map<uint64_t, CompletionStatus> poll_all() {
    std::map<uint64_t, CompletionStatus> all;
    std::array<Completion, 5> some;
    while (const size_t count = channel_->poll(some)) {
      for (size_t i = 0; i < count; ++i) {
        EXPECT_TRUE(all.emplace(some[i].token, some[i].status).second) << "completed twice";
      }
    }
    return all;
  }
  const std::vector<PostedRequest>& posted() { return fake_->state().posted; }

  Mapping buffer_ = *Mapping::anonymous(16 * kPageBytes);
  std::shared_ptr<FakeVerbs> fake_ =
      std::make_shared<FakeVerbs>(std::vector<FakeDevice>{fake_roce_device()});
  std::unique_ptr<VerbsTransport> transport_ =
      std::make_unique<VerbsTransport>(fake_, VerbsOptions());
  ChannelOptions options_;
  Result<QueuePairEndpoint> exchange_result_ = node_endpoint();
  QueuePairEndpoint ours_;
  std::unique_ptr<Channel> channel_;
  uint64_t next_token_ = 0;
};

TEST_F(VerbsChannelTest, TheHandshakeCarriesWhatBothSidesAgreedOn) {
  use({.timeout_exponent = 12, .retry_count = 5});
  ASSERT_TRUE(connect());
  const auto& calls = fake_->state().modified;
  ASSERT_EQ(calls.size(), 3U);

  EXPECT_EQ(calls[0].attributes.qp_state, IBV_QPS_INIT);
  EXPECT_EQ(calls[0].attributes.port_num, 1);
  EXPECT_EQ(calls[0].attributes.qp_access_flags & IBV_ACCESS_REMOTE_READ, 0U);

  const ibv_qp_attr& receive = calls[1].attributes;
  EXPECT_EQ(receive.qp_state, IBV_QPS_RTR);
  EXPECT_EQ(receive.path_mtu, IBV_MTU_1024);
  EXPECT_EQ(receive.dest_qp_num, 0x777U);
  EXPECT_EQ(receive.rq_psn, 0x42U);
  EXPECT_EQ(receive.ah_attr.is_global, 1);
  EXPECT_EQ(receive.ah_attr.grh.sgid_index, 1);
  EXPECT_EQ(receive.ah_attr.port_num, 1);
  EXPECT_EQ(calls[1].mask, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                               IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);

  const ibv_qp_attr& send = calls[2].attributes;
  EXPECT_EQ(send.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(send.sq_psn, ours_.psn);
  EXPECT_EQ(send.max_rd_atomic, 8);
  EXPECT_EQ(send.timeout, 12);
  EXPECT_EQ(send.retry_cnt, 5);
  EXPECT_EQ(channel_->limits().reads_in_flight, 8U);
}

TEST_F(VerbsChannelTest, OurEndpointTellsTheNodeWhatThisPortCanDo) {
  fake_->state().devices[0].ports[0].attributes.active_mtu = IBV_MTU_2048;
  ASSERT_TRUE(connect());
  EXPECT_EQ(ours_.qpn, fake_->state().queue_pairs.at(0)->qp_num);
  EXPECT_EQ(ours_.gid, "::ffff:10.0.0.1");
  EXPECT_EQ(ours_.gid_index, 1);
  EXPECT_TRUE(ours_.is_global);
  EXPECT_EQ(ours_.mtu_bytes, 2048U);
  EXPECT_EQ(ours_.max_rd_atomic, 16U);
}

TEST_F(VerbsChannelTest, TheNodeIsToldTheSession) {
  options_.session = 0xfedcba9876543210;
  ASSERT_TRUE(connect());
  EXPECT_EQ(ours_.session, 0xfedcba9876543210U);
}

TEST_F(VerbsChannelTest, PacketNumbersAreRandomAndOf24Bits) {
  std::map<uint32_t, int> seen;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(connect());
    EXPECT_LE(ours_.psn, 0xffffffU);
    ++seen[ours_.psn];
  }
  EXPECT_GT(seen.size(), 18U);
}

TEST_F(VerbsChannelTest, TheBufferIsRegisteredOnceAndForLocalUseOnly) {
  ASSERT_TRUE(connect());
  const auto& calls = fake_->state().registered;
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_EQ(calls[0].address, buffer_.data());
  EXPECT_EQ(calls[0].bytes, buffer_.size());
  EXPECT_EQ(calls[0].access, IBV_ACCESS_LOCAL_WRITE);
}

TEST_F(VerbsChannelTest, FailuresOfTheSetUpAreToldAndLeakNothing) {
  exchange_result_ = fail(ErrorCode::kUnavailable, "the coordinator is away");
  EXPECT_THAT(connect().error().message(), HasSubstr("coordinator is away"));
  exchange_result_ = node_endpoint();
  fake_->state().register_fails = true;
  EXPECT_EQ(connect().error().code, ErrorCode::kExhausted);
  fake_->state().register_fails = false;
  fake_->state().modify_error = EINVAL;
  EXPECT_THAT(connect().error().message(), HasSubstr("INIT"));
  fake_->state().modify_error = 0;
  exchange_result_->mtu_bytes = 3;
  EXPECT_THAT(connect().error().message(), HasSubstr("mtu_bytes 3"));
  fake_->state().devices[0].ports[0].attributes.state = IBV_PORT_DOWN;
  EXPECT_EQ(connect().error().code, ErrorCode::kUnsupported);
}

TEST_F(VerbsChannelTest, OneDoorbellCarriesAllOperationsOfAPost) {
  ASSERT_TRUE(connect());
  EXPECT_EQ(post(OperationKind::kRead, 10), 10U);
  EXPECT_EQ(fake_->state().doorbells, 1);
  ASSERT_EQ(posted().size(), 10U);
  EXPECT_EQ(posted()[3].request.opcode, IBV_WR_RDMA_READ);
  EXPECT_EQ(posted()[3].request.wr.rdma.remote_addr, 0x10000U + 103);
  EXPECT_EQ(posted()[3].request.wr.rdma.rkey, 0x55U);
  EXPECT_EQ(posted()[3].slice.length, kPageBytes);
}

TEST_F(VerbsChannelTest, ReadsAreAllSignalledAndWritesNowAndThen) {
  ASSERT_TRUE(connect());
  post(OperationKind::kRead, 4);
  for (const PostedRequest& request : posted()) {
    EXPECT_NE(request.request.send_flags & IBV_SEND_SIGNALED, 0U);
  }
  post(OperationKind::kWrite, 9);
  size_t signalled = 0;
  for (size_t i = 4; i < posted().size(); ++i) {
    if ((posted()[i].request.send_flags & IBV_SEND_SIGNALED) != 0) ++signalled;
  }
  EXPECT_LT(signalled, 9U);
  EXPECT_NE(posted().back().request.send_flags & IBV_SEND_SIGNALED, 0U) << "or it never completes";
}

TEST_F(VerbsChannelTest, UnsignalledWritesCompleteWithTheNextSignalledOne) {
  ASSERT_TRUE(connect());
  post(OperationKind::kWrite, 9);
  fake_->complete(posted().back().request.wr_id, IBV_WC_SUCCESS);
  const auto done = poll_all();
  EXPECT_EQ(done.size(), 9U);
  for (const auto& [token, status] : done) EXPECT_EQ(status, CompletionStatus::kOk) << token;
}

TEST_F(VerbsChannelTest, MoreOperationsThanRoomAreTakenInPart) {
  ASSERT_TRUE(connect());
  EXPECT_EQ(post(OperationKind::kRead, 40), 32U);
  EXPECT_EQ(post(OperationKind::kRead, 1), 0U);
  fake_->complete(posted()[1].request.wr_id, IBV_WC_SUCCESS);
  EXPECT_EQ(poll_all().size(), 2U);
  EXPECT_EQ(post(OperationKind::kRead, 40), 2U);
}

TEST_F(VerbsChannelTest, AnErrorReachesItsOperationAndFlushesTheRest) {
  ASSERT_TRUE(connect());
  post(OperationKind::kRead, 4);
  fake_->complete(posted()[0].request.wr_id, IBV_WC_SUCCESS);
  fake_->complete(posted()[1].request.wr_id, IBV_WC_REM_ACCESS_ERR);
  const auto done = poll_all();
  EXPECT_THAT(done, ElementsAre(std::pair(100, CompletionStatus::kOk),
                                std::pair(101, CompletionStatus::kRemoteAccess),
                                std::pair(102, CompletionStatus::kFlushed),
                                std::pair(103, CompletionStatus::kFlushed)));
  EXPECT_FALSE(channel_->usable());
  EXPECT_THAT(channel_->why_broken(), HasSubstr("fake status"));
  EXPECT_TRUE(fake_->state().queue_pairs.empty())
      << "the device must not touch the buffer any more";
  EXPECT_EQ(post(OperationKind::kRead, 1), 0U);
  // The device's later completions are for operations that are already done.
  fake_->complete(posted()[2].request.wr_id, IBV_WC_WR_FLUSH_ERR);
  EXPECT_TRUE(poll_all().empty());
}

TEST_F(VerbsChannelTest, EachStatusIsRoutedToItsWaiter) {
  const std::map<ibv_wc_status, CompletionStatus> cases = {
      {IBV_WC_REM_ACCESS_ERR, CompletionStatus::kRemoteAccess},
      {IBV_WC_RETRY_EXC_ERR, CompletionStatus::kPeerGone},
      {IBV_WC_LOC_PROT_ERR, CompletionStatus::kLocalError},
      {IBV_WC_WR_FLUSH_ERR, CompletionStatus::kFlushed},
      {IBV_WC_FATAL_ERR, CompletionStatus::kLocalError}};
  for (const auto& [device_says, caller_sees] : cases) {
    ASSERT_TRUE(connect());
    fake_->state().completions.clear();
    post(OperationKind::kRead, 2);
    const size_t first = posted().size() - 2;
    fake_->complete(posted()[first].request.wr_id, device_says);
    const auto done = poll_all();
    ASSERT_EQ(done.size(), 2U);
    EXPECT_EQ(done.begin()->second, caller_sees);
    EXPECT_EQ(done.rbegin()->second, CompletionStatus::kFlushed);
  }
}

TEST_F(VerbsChannelTest, APostThatTheDeviceRefusesInPartBreaksTheChannel) {
  ASSERT_TRUE(connect());
  fake_->state().post_takes = 2;
  EXPECT_EQ(post(OperationKind::kWrite, 5), 2U);
  EXPECT_FALSE(channel_->usable());
  const auto done = poll_all();
  EXPECT_THAT(done, ElementsAre(std::pair(100, CompletionStatus::kFlushed),
                                std::pair(101, CompletionStatus::kFlushed)));
}

TEST_F(VerbsChannelTest, ALocalSliceOutsideTheBufferNeverReachesTheDevice) {
  ASSERT_TRUE(connect());
  std::vector<Operation> operations(4, operation(OperationKind::kWrite, 1));
  for (size_t i = 0; i < operations.size(); ++i) operations[i].token = 100 + i;
  operations[1].local = {buffer_.data() + buffer_.size() - 100, 200};
  operations[3].local = {};
  ASSERT_EQ(channel_->post(operations), 4U);
  ASSERT_EQ(posted().size(), 2U);
  EXPECT_NE(posted()[1].request.send_flags & IBV_SEND_SIGNALED, 0U) << "the last that is sent";
  fake_->complete(posted()[1].request.wr_id, IBV_WC_SUCCESS);
  EXPECT_THAT(poll_all(), ElementsAre(std::pair(100, CompletionStatus::kOk),
                                      std::pair(101, CompletionStatus::kLocalError),
                                      std::pair(102, CompletionStatus::kOk),
                                      std::pair(103, CompletionStatus::kLocalError)));
  EXPECT_TRUE(channel_->usable());
}

TEST_F(VerbsChannelTest, ABrokenCompletionQueueEndsEverything) {
  ASSERT_TRUE(connect());
  post(OperationKind::kRead, 3);
  fake_->state().completion_queue_broken = true;
  EXPECT_EQ(poll_all().size(), 3U);
  EXPECT_FALSE(channel_->usable());
}

TEST_F(VerbsChannelTest, AnOperationPastItsTimeLimitIsTimedOut) {
  options_.operation_timeout = Nanoseconds(0);
  ASSERT_TRUE(connect());
  post(OperationKind::kRead, 2);
  const auto done = poll_all();
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done.at(100), CompletionStatus::kTimedOut);
  EXPECT_FALSE(channel_->usable());
  EXPECT_TRUE(fake_->state().queue_pairs.empty());
}

TEST_F(VerbsChannelTest, WaitingOnADeadDeviceEndsAtTheOperationsTimeLimit) {
  for (const PollMode mode : {PollMode::kAdaptive, PollMode::kBusy, PollMode::kEvent}) {
    options_.poll_mode = mode;
    options_.operation_timeout = Milliseconds(5);
    ASSERT_TRUE(connect());
    post(OperationKind::kRead, 1);
    std::array<Completion, 4> done;
    ASSERT_EQ(channel_->wait(done, Seconds(60)), 1U);
    EXPECT_EQ(done[0].status, CompletionStatus::kTimedOut);
  }
}

TEST_F(VerbsChannelTest, ABlockedWaitIsWokenByTheCompletionsEvent) {
  options_.poll_mode = PollMode::kEvent;
  options_.operation_timeout = Seconds(60);
  ASSERT_TRUE(connect());
  post(OperationKind::kRead, 1);
  // Completes only once the queue has been armed, so the wait must sleep and be woken.
  std::thread device([this] {
    while (true) {
      const std::lock_guard lock(fake_->state().mutex);
      if (fake_->state().armed > 0) break;
    }
    fake_->complete(0, IBV_WC_SUCCESS);
  });
  std::array<Completion, 4> done;
  EXPECT_EQ(channel_->wait(done, Seconds(60)), 1U);
  device.join();
  EXPECT_EQ(done[0].status, CompletionStatus::kOk);
}

TEST_F(VerbsChannelTest, WaitingWithNothingInFlightReturnsAtOnce) {
  ASSERT_TRUE(connect());
  std::array<Completion, 4> none;
  EXPECT_EQ(channel_->wait(none, Seconds(3600)), 0U);
}

TEST_F(VerbsChannelTest, OptionsThatCannotWorkAreNamed) {
  options_.buffer = buffer_.bytes().subspan(1);
  EXPECT_THAT(connect().error().context, HasSubstr("buffer"));
  options_.buffer = buffer_.bytes();
  options_.operations_in_flight = 0;
  EXPECT_THAT(connect().error().context, HasSubstr("operations_in_flight"));
  options_.operations_in_flight = 8;
  use({.retry_count = 7});
  EXPECT_THAT(connect().error().context, HasSubstr("retry_count 7"));
}

TEST_F(VerbsChannelTest, TheCompletionQueueAndTheDeviceBoundWhatIsInFlight) {
  options_.operations_in_flight = 100000;
  ASSERT_TRUE(connect());
  EXPECT_EQ(channel_->limits().operations_in_flight, 1024U);
  use({.cq_depth = 24});
  ASSERT_TRUE(connect());
  EXPECT_EQ(channel_->limits().operations_in_flight, 24U);
}

TEST(VerbsLibrary, Defect14AMachineWithoutItIsToldSo) {
  const auto absent = load_verbs_library("libfarpage-no-such-library.so.1");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(absent.error().context, HasSubstr("libibverbs1"));
}

}  // namespace
}  // namespace farpage::rdma::verbs
