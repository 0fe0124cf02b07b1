#include "rdma/verbs/choices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace farpage::rdma::verbs {
namespace {

using ::testing::HasSubstr;

GidFacts gid(uint32_t index, const std::string& text, GidType type) {
  return {index, *gid_from_text(text), type};
}

PortFacts roce_port(const std::string& device = "mlx5_0") {
  PortFacts port;
  port.device = device;
  port.port = 1;
  port.state = IBV_PORT_ACTIVE;
  port.ethernet = true;
  port.active_mtu_bytes = 4096;
  port.max_init_rd_atomic = 16;
  port.max_resp_rd_atomic = 16;
  port.gids = {gid(0, "fe80::1", GidType::kRoceV1), gid(1, "fe80::1", GidType::kRoceV2),
               gid(2, "::ffff:10.0.0.1", GidType::kRoceV1),
               gid(3, "::ffff:10.0.0.1", GidType::kRoceV2)};
  return port;
}

PortFacts infiniband_port() {
  PortFacts port = roce_port("mlx4_0");
  port.ethernet = false;
  port.lid = 7;
  port.gids = {gid(0, "fe80::7", GidType::kInfiniBand)};
  return port;
}

LocalSide local_side(PortFacts port, const PortWish& wish = {}) {
  Survey survey;
  survey.ports = {std::move(port)};
  auto local = choose_local_side(survey, wish);
  EXPECT_TRUE(local) << local.error().message();
  return *local;
}

QueuePairEndpoint roce_peer() {
  QueuePairEndpoint peer;
  peer.qpn = 0x123456;
  peer.psn = 0xabcdef;
  peer.gid = "::ffff:10.0.0.2";
  peer.mtu_bytes = 4096;
  peer.max_rd_atomic = 16;
  peer.max_dest_rd_atomic = 16;
  return peer;
}

std::string refusal(const LocalSide& local, const QueuePairEndpoint& peer) {
  const auto plan = plan_connection(local, 1, peer, {});
  return plan ? "accepted" : plan.error().message();
}

TEST(VerbsPort, TheFirstActiveOneIsChosen) {
  Survey survey;
  survey.ports = {roce_port("down0"), roce_port("up0"), roce_port("up1")};
  survey.ports[0].state = IBV_PORT_DOWN;
  EXPECT_EQ(choose_port(survey, {})->device, "up0");
  EXPECT_EQ(choose_port(survey, {.device = "up1"})->device, "up1");
}

TEST(VerbsPort, WhenNoneFitsEachCandidateHasItsReason) {
  Survey survey;
  survey.ports = {roce_port("down0"), roce_port("nogid0"), roce_port("noread0"),
                  roce_port("iwarp0")};
  survey.ports[0].state = IBV_PORT_DOWN;
  survey.ports[1].gids.clear();
  survey.ports[2].max_init_rd_atomic = 0;
  survey.ports[3].iwarp = true;
  survey.unreadable = {"secret0: cannot be opened"};
  const auto none = choose_port(survey, {});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(none.error().context, HasSubstr("down0 port 1: the port is DOWN"));
  EXPECT_THAT(none.error().context, HasSubstr("nogid0 port 1: the port has no RoCE v2 GID"));
  EXPECT_THAT(none.error().context, HasSubstr("noread0 port 1: the device cannot do RDMA READ"));
  EXPECT_THAT(none.error().context, HasSubstr("iwarp0 port 1: iWARP"));
  EXPECT_THAT(none.error().context, HasSubstr("secret0: cannot be opened"));
}

TEST(VerbsPort, ANameThatDoesNotExistIsTold) {
  Survey survey;
  EXPECT_THAT(choose_port(survey, {}).error().context, HasSubstr("has no RDMA device"));
  survey.ports = {roce_port()};
  EXPECT_THAT(choose_port(survey, {.device = "mlx9"}).error().context, HasSubstr("'mlx9'"));
  EXPECT_THAT(choose_port(survey, {.port = 3}).error().context, HasSubstr("port 3"));
}

TEST(VerbsGid, RoceV2WithAnIpv4AddressComesFirst) {
  PortFacts port = roce_port();
  EXPECT_EQ(choose_gid(port, -1)->index, 3U);
  port.gids.pop_back();
  EXPECT_EQ(choose_gid(port, -1)->index, 1U) << "then a link-local one";
  port.gids.push_back(gid(9, "2001:db8::1", GidType::kRoceV2));
  EXPECT_EQ(choose_gid(port, -1)->index, 9U) << "but a routable one before that";
  EXPECT_EQ(choose_gid(infiniband_port(), -1)->index, 0U);
}

TEST(VerbsGid, AConfiguredIndexIsTakenOrRefusedByName) {
  EXPECT_EQ(choose_gid(roce_port(), 2)->index, 2U);
  const auto absent = choose_gid(roce_port(), 5);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(absent.error().context, HasSubstr("gid_index 5"));
}

TEST(VerbsPlan, MtuIsTheLeastOfBothSidesAndTheConfiguration) {
  struct Case {
    uint32_t ours, cap, peers, chosen;
  };
  for (const Case& c :
       {Case{4096, 0, 4096, 4096}, Case{1024, 0, 4096, 1024}, Case{4096, 0, 1024, 1024},
        Case{4096, 2048, 4096, 2048}, Case{1024, 2048, 4096, 1024}, Case{256, 0, 4096, 256}}) {
    PortFacts port = roce_port();
    port.active_mtu_bytes = c.ours;
    QueuePairEndpoint peer = roce_peer();
    peer.mtu_bytes = c.peers;
    const auto plan = plan_connection(local_side(port, {.mtu_bytes = c.cap}), 1, peer, {});
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->mtu_bytes, c.chosen);
    EXPECT_EQ(mtu_bytes_of(plan->path_mtu), c.chosen);
  }
}

TEST(VerbsPlan, ReadDepthIsWhatBothSidesCanDo) {
  struct Case {
    uint32_t ours, cap, peer_answers, chosen;
  };
  for (const Case& c : {Case{16, 0, 16, 16}, Case{128, 0, 16, 16}, Case{16, 0, 1, 1},
                        Case{16, 4, 16, 4}, Case{1000, 0, 1000, 255}}) {
    PortFacts port = roce_port();
    port.max_init_rd_atomic = c.ours;
    QueuePairEndpoint peer = roce_peer();
    peer.max_dest_rd_atomic = c.peer_answers;
    const auto plan = plan_connection(local_side(port, {.read_depth = c.cap}), 1, peer, {});
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->max_rd_atomic, c.chosen);
  }
}

TEST(VerbsPlan, TheNodeAnswersWhatThePeerMayHaveInFlight) {
  QueuePairEndpoint peer = roce_peer();
  peer.max_rd_atomic = 3;
  EXPECT_EQ(plan_connection(local_side(roce_port()), 1, peer, {})->max_dest_rd_atomic, 3);
  peer.max_rd_atomic = 128;
  EXPECT_EQ(plan_connection(local_side(roce_port()), 1, peer, {})->max_dest_rd_atomic, 16);
}

TEST(VerbsPlan, TheGlobalHeaderGoesByLinkLayer) {
  const auto roce = plan_connection(local_side(roce_port()), 1, roce_peer(), {});
  EXPECT_EQ(roce->path.is_global, 1);
  EXPECT_EQ(roce->path.grh.sgid_index, 3);

  QueuePairEndpoint peer = roce_peer();
  peer.is_global = false;
  peer.lid = 9;
  peer.gid = "fe80::9";
  const auto same_subnet = plan_connection(local_side(infiniband_port()), 1, peer, {});
  ASSERT_TRUE(same_subnet) << same_subnet.error().message();
  EXPECT_EQ(same_subnet->path.is_global, 0);
  EXPECT_EQ(same_subnet->path.dlid, 9);

  peer.gid = "fec0:1::9";
  EXPECT_EQ(plan_connection(local_side(infiniband_port()), 1, peer, {})->path.is_global, 1);
}

TEST(VerbsPlan, AWrongFieldOfThePeerIsNamed) {
  const LocalSide local = local_side(roce_port());
  const auto with = [&](auto change) {
    QueuePairEndpoint peer = roce_peer();
    change(peer);
    return refusal(local, peer);
  };
  EXPECT_EQ(with([](auto&) {}), "accepted");
  EXPECT_THAT(with([](auto& p) { p.qpn = 0; }), HasSubstr("qpn"));
  EXPECT_EQ(with([](auto& p) { p.qpn = 0xffffff; }), "accepted");
  EXPECT_THAT(with([](auto& p) { p.qpn = 0x1000000; }), HasSubstr("qpn"));
  EXPECT_THAT(with([](auto& p) { p.psn = 0x1000000; }), HasSubstr("psn"));
  EXPECT_THAT(with([](auto& p) { p.mtu_bytes = 1500; }), HasSubstr("mtu_bytes 1500"));
  EXPECT_THAT(with([](auto& p) { p.max_dest_rd_atomic = 0; }), HasSubstr("max_dest_rd_atomic"));
  EXPECT_THAT(with([](auto& p) { p.gid = "not a gid"; }), HasSubstr("gid"));
  EXPECT_THAT(with([](auto& p) { p.gid = ""; }), HasSubstr("gid"));
  EXPECT_THAT(with([](auto& p) { p.gid = "fe80::2"; }), HasSubstr("gid_index"));
  EXPECT_THAT(with([](auto& p) { p.is_global = false; }), HasSubstr("is_global"));
  QueuePairEndpoint peer = roce_peer();
  EXPECT_THAT(refusal(local_side(infiniband_port()), peer), HasSubstr("lid"));
}

TEST(VerbsPlan, RetriesThatNeverEndAreRefused) {
  const LocalSide local = local_side(roce_port());
  const auto plan = [&](uint8_t exponent, uint8_t retries) {
    return plan_connection(local, 1, roce_peer(), {exponent, retries});
  };
  EXPECT_TRUE(plan(14, 6));
  EXPECT_TRUE(plan(1, 0));
  EXPECT_TRUE(plan(31, 0));
  EXPECT_THAT(plan(14, 7).error().context, HasSubstr("retry_count 7"));
  EXPECT_THAT(plan(0, 3).error().context, HasSubstr("timeout_exponent 0"));
  EXPECT_THAT(plan(32, 3).error().context, HasSubstr("timeout_exponent 32"));
}

TEST(VerbsStatus, EveryWorkCompletionStatusHasItsMeaning) {
  EXPECT_EQ(completion_status_of(IBV_WC_SUCCESS), CompletionStatus::kOk);
  EXPECT_EQ(completion_status_of(IBV_WC_REM_ACCESS_ERR), CompletionStatus::kRemoteAccess);
  EXPECT_EQ(completion_status_of(IBV_WC_RETRY_EXC_ERR), CompletionStatus::kPeerGone);
  EXPECT_EQ(completion_status_of(IBV_WC_WR_FLUSH_ERR), CompletionStatus::kFlushed);
  EXPECT_EQ(completion_status_of(IBV_WC_RESP_TIMEOUT_ERR), CompletionStatus::kTimedOut);
  EXPECT_EQ(completion_status_of(IBV_WC_LOC_PROT_ERR), CompletionStatus::kLocalError);
  for (int status = IBV_WC_SUCCESS + 1; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
    EXPECT_NE(completion_status_of(static_cast<ibv_wc_status>(status)), CompletionStatus::kOk)
        << status;
  }
}

TEST(VerbsGid, TextAndBytesAgree) {
  EXPECT_EQ(gid_text(*gid_from_text("::ffff:10.77.0.1")), "::ffff:10.77.0.1");
  EXPECT_EQ(gid_text(*gid_from_text("FE80:0::1")), "fe80::1");
  EXPECT_FALSE(gid_from_text("10.77.0.1"));
  EXPECT_FALSE(gid_from_text(""));
}

}  // namespace
}  // namespace farpage::rdma::verbs
