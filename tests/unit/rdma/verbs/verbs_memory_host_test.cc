#include "rdma/verbs/verbs_memory_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/mapping.h"
#include "tests/unit/rdma/verbs/fake_verbs.h"

namespace farpage::rdma::verbs {
namespace {

using ::testing::HasSubstr;

QueuePairEndpoint pager_endpoint(uint32_t qpn) {
  QueuePairEndpoint pager;
  pager.qpn = qpn;
  pager.psn = 0x99;
  pager.gid = "::ffff:10.0.0.9";
  pager.mtu_bytes = 1024;
  pager.max_rd_atomic = 4;
  pager.max_dest_rd_atomic = 1;
  return pager;
}

class VerbsMemoryHostTest : public ::testing::Test {
 protected:
  ~VerbsMemoryHostTest() override {
    host_.reset();
    EXPECT_EQ(fake_->state().alive, 0) << "objects were leaked";
  }
  void create(VerbsHostOptions options = {}) {
    auto host = VerbsMemoryHost::create(fake_, options);
    ASSERT_TRUE(host) << host.error().message();
    host_ = std::move(*host);
  }
  // Waits for an effect of the host's own thread; fails the test after 20 s, a hang.
  void eventually(const std::function<bool()>& holds) {
    const Instant give_up = SteadyClock::read() + Seconds(20);
    while (!holds()) {
      ASSERT_LT(SteadyClock::read(), give_up) << "did not happen";
      std::this_thread::yield();
    }
  }
  size_t probes_of(uint32_t qpn) {
    const std::lock_guard lock(fake_->state().mutex);
    return static_cast<size_t>(std::ranges::count_if(
        fake_->state().posted, [&](const PostedRequest& p) { return p.qpn == qpn; }));
  }

  std::shared_ptr<FakeVerbs> fake_ =
      std::make_shared<FakeVerbs>(std::vector<FakeDevice>{fake_roce_device()});
  std::unique_ptr<MemoryHost> host_;
  Mapping slab_ = *Mapping::anonymous(4 * kPageBytes);
};

TEST_F(VerbsMemoryHostTest, EachLeaseIsARegistrationWithNoMoreThanReadAndWrite) {
  create();
  const auto first = host_->expose({slab_.bytes(), -1}, Generation{1}, 0);
  const auto second = host_->expose({slab_.bytes(), -1}, Generation{2}, 0);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->value, second->value);
  for (const RegisterCall& call : fake_->state().registered) {
    EXPECT_EQ(call.access,
              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
  }
  const int alive = fake_->state().alive;
  host_->withdraw(*first);
  EXPECT_EQ(fake_->state().alive, alive - 1);
}

TEST_F(VerbsMemoryHostTest, EachBorrowerHasAProtectionDomainOfItsOwn) {
  create();
  const int alive = fake_->state().alive;
  const auto session_of = [](uint32_t qpn, SessionGroup borrower) {
    QueuePairEndpoint pager = pager_endpoint(qpn);
    pager.session = (uint64_t{borrower} << 32) | qpn;
    return pager;
  };
  const auto mine = host_->expose({slab_.bytes(), -1}, Generation{1}, 7);
  const auto more = host_->expose({slab_.bytes(), -1}, Generation{1}, 7);
  const auto theirs = host_->expose({slab_.bytes(), -1}, Generation{1}, 8);
  ASSERT_TRUE(mine && more && theirs);
  ASSERT_TRUE(host_->accept(session_of(0x500, 7)));
  ASSERT_TRUE(host_->accept(session_of(0x501, 8)));
  ASSERT_TRUE(host_->accept(session_of(0x502, 7)));
  const auto& registered = fake_->state().registered;
  const auto& queue_pairs = fake_->state().queue_pairs;
  ASSERT_EQ(registered.size(), 3U);
  ASSERT_EQ(queue_pairs.size(), 3U);
  EXPECT_EQ(registered[0].domain, registered[1].domain);
  EXPECT_NE(registered[0].domain, registered[2].domain);
  EXPECT_EQ(queue_pairs[0]->pd, registered[0].domain);
  EXPECT_EQ(queue_pairs[1]->pd, registered[2].domain);
  EXPECT_EQ(queue_pairs[2]->pd, registered[0].domain);
  const int before = fake_->state().alive;
  host_->withdraw(*theirs);
  EXPECT_EQ(fake_->state().alive, before - 1) << "its queue pair still needs the domain";
  EXPECT_GT(before, alive);
}

TEST_F(VerbsMemoryHostTest, TooLittleLockedMemoryIsAnErrorThatNamesTheSize) {
  create();
  fake_->state().register_fails = true;
  const auto refused = host_->expose({slab_.bytes(), -1}, Generation{1}, 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr("16384 bytes"));
}

TEST_F(VerbsMemoryHostTest, APeerGetsAQueuePairThatAnswersWhatItAsks) {
  create();
  const auto ours = host_->accept(pager_endpoint(0x500));
  ASSERT_TRUE(ours) << ours.error().message();
  EXPECT_EQ(ours->mtu_bytes, 1024U);
  EXPECT_EQ(ours->max_dest_rd_atomic, 4U);
  EXPECT_EQ(host_->counters().peers, 1U);
  const auto& calls = fake_->state().modified;
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_EQ(calls[0].attributes.qp_access_flags,
            static_cast<unsigned>(IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE));
  EXPECT_EQ(calls[1].attributes.dest_qp_num, 0x500U);
  EXPECT_EQ(calls[1].attributes.rq_psn, 0x99U);
  EXPECT_EQ(calls[1].attributes.max_dest_rd_atomic, 4);
  EXPECT_EQ(calls[2].attributes.qp_state, IBV_QPS_RTS) << "ready before the reply";
  EXPECT_EQ(calls[2].attributes.sq_psn, ours->psn);
}

TEST_F(VerbsMemoryHostTest, APeerThatConnectsAnewReplacesItsOldQueuePair) {
  create();
  ASSERT_TRUE(host_->accept(pager_endpoint(0x500)));
  ASSERT_TRUE(host_->accept(pager_endpoint(0x501)));
  ASSERT_TRUE(host_->accept(pager_endpoint(0x500)));
  EXPECT_EQ(host_->counters().peers, 2U);
  EXPECT_EQ(fake_->state().queue_pairs.size(), 2U);
}

TEST_F(VerbsMemoryHostTest, NewQueuePairWaitsForTheEndOfItsSessionsFormerOne) {
  create();
  QueuePairEndpoint pager = pager_endpoint(0x500);
  pager.session = 0xfedcba9876543210;
  const auto former = host_->accept(pager);
  ASSERT_TRUE(former);
  ASSERT_TRUE(host_->accept(pager_endpoint(0x600))) << "of no session";
  pager.qpn = 0x501;
  const auto latter = host_->accept(pager);
  ASSERT_TRUE(latter);
  EXPECT_NE(latter->qpn, former->qpn);
  EXPECT_EQ(host_->counters().peers, 2U);
  const auto& state = fake_->state();
  for (const ibv_qp* alive : state.queue_pairs) EXPECT_NE(alive->qp_num, former->qpn);
  const auto ready = std::ranges::find_if(state.modified, [&](const ModifyCall& call) {
    return call.qpn == latter->qpn && call.attributes.qp_state == IBV_QPS_RTR;
  });
  ASSERT_NE(ready, state.modified.end());
  EXPECT_EQ(ready->queue_pairs_alive, 2U) << "the former one was alive";
}

TEST_F(VerbsMemoryHostTest, PeersWithoutASessionDoNotReplaceEachOther) {
  create();
  ASSERT_TRUE(host_->accept(pager_endpoint(0x500)));
  ASSERT_TRUE(host_->accept(pager_endpoint(0x501)));
  EXPECT_EQ(host_->counters().peers, 2U);
}

TEST_F(VerbsMemoryHostTest, AFormerQueuePairOfTheSessionTakesNoPlace) {
  create({.max_peers = 1});
  QueuePairEndpoint pager = pager_endpoint(0x500);
  pager.session = 7;
  for (; pager.qpn < 0x505; ++pager.qpn) ASSERT_TRUE(host_->accept(pager));
  EXPECT_EQ(host_->counters().peers, 1U);
}

TEST_F(VerbsMemoryHostTest, PeersAreBounded) {
  create({.max_peers = 2});
  ASSERT_TRUE(host_->accept(pager_endpoint(1)));
  ASSERT_TRUE(host_->accept(pager_endpoint(2)));
  const auto refused = host_->accept(pager_endpoint(3));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_TRUE(host_->accept(pager_endpoint(2))) << "an old one may still come anew";
}

TEST_F(VerbsMemoryHostTest, AWrongEndpointIsRefusedAndLeavesNoQueuePair) {
  create();
  QueuePairEndpoint wrong = pager_endpoint(1);
  wrong.gid = "10.0.0.9";
  const auto refused = host_->accept(wrong);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalid);
  EXPECT_TRUE(fake_->state().queue_pairs.empty());
}

TEST_F(VerbsMemoryHostTest, AnEventOfAQueuePairDropsItsPeer) {
  create();
  ASSERT_TRUE(host_->accept(pager_endpoint(1)));
  ASSERT_TRUE(host_->accept(pager_endpoint(2)));
  ibv_async_event event{};
  event.event_type = IBV_EVENT_QP_ACCESS_ERR;
  event.element.qp = fake_->state().queue_pairs.at(0);
  fake_->raise(event);
  eventually([&] { return host_->counters().peers == 1; });
  EXPECT_EQ(host_->counters().refused, 1U);
}

TEST_F(VerbsMemoryHostTest, APeerThatAnswersItsProbesStaysAndASilentOneIsDropped) {
  create({.peer_check_interval = Milliseconds(1)});
  const auto lively = host_->accept(pager_endpoint(1));
  const auto silent = host_->accept(pager_endpoint(2));
  ASSERT_TRUE(lively && silent);
  eventually([&] { return probes_of(lively->qpn) == 1 && probes_of(silent->qpn) == 1; });
  fake_->complete(silent->qpn, IBV_WC_RETRY_EXC_ERR);
  fake_->complete(lively->qpn, IBV_WC_SUCCESS);
  eventually([&] { return probes_of(lively->qpn) == 2; });
  EXPECT_EQ(host_->counters().peers, 1U);
  const std::lock_guard lock(fake_->state().mutex);
  const PostedRequest& probe = fake_->state().posted.front();
  EXPECT_EQ(probe.request.opcode, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(probe.request.num_sge, 0);
}

TEST_F(VerbsMemoryHostTest, NoFittingDeviceIsToldWithTheReason) {
  fake_->state().devices[0].ports[0].attributes.state = IBV_PORT_DOWN;
  const auto none = VerbsMemoryHost::create(fake_, {});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(none.error().context, HasSubstr("DOWN"));
  EXPECT_THAT(VerbsMemoryHost::create(fake_, {.max_peers = 0}).error().context,
              HasSubstr("max_peers"));
}

TEST_F(VerbsMemoryHostTest, ThePublishedAddressIsThatOfTheChosenPort) {
  create({.mtu_bytes = 2048});
  const TransportAddress address = host_->address();
  EXPECT_EQ(address.kind, TransportKind::kVerbs);
  EXPECT_EQ(address.text, "fake0/1 lid=0 gid=::ffff:10.0.0.1 gid_index=1 mtu=2048");
}

}  // namespace
}  // namespace farpage::rdma::verbs
