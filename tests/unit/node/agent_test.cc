#include "node/agent.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <nlohmann/json.hpp>
#include <random>

#include "coordinator/api_json.h"
#include "fakes.h"
#include "http/server.h"

namespace farpage::node {
namespace {

using nlohmann::json;

constexpr char kLease[] = R"({"slabs":[{"node_slab":0,"region":"r1","slab":0,"replica":0}]})";

class AgentTest : public testing::Test {
 protected:
  void SetUp() override {
    SlabPoolOptions options;
    options.lend_bytes = 2 * kSlab;
    options.slab_bytes = kSlab;
    options.generation_base = 10;
    pool_ = std::move(*SlabPool::create(options));
    hosts_.push_back(std::make_unique<FakeHost>(rdma::TransportKind::kTcp));
    hosts_.push_back(std::make_unique<FakeHost>(rdma::TransportKind::kVerbs));
    lender_.emplace(*pool_, hosts_, Lender::Options{});
    start("");
  }

  void start(const std::string& token) {
    agent_.reset();
    AgentOptions options{"127.0.0.1", 0, token, {}};
    if (repairs_images_)
      options.repair_image = [this](const ImageId& image) { images_.push_back(image.value); };
    auto agent = Agent::create(options, *lender_, [this] {
      NodeReport report;
      report.id = NodeId{"n1"};
      report.slabs = lender_->slab_counts();
      report.addresses = lender_->addresses();
      report.transports = lender_->reports();
      return report;
    });
    ASSERT_TRUE(agent.has_value()) << agent.error().message();
    agent_ = std::move(*agent);
    http_.emplace("127.0.0.1", agent_->port());
    http_->set_tcp_nodelay(true);
  }

  httplib::Result post(const std::string& path, const std::string& body) {
    return http_->Post(path, body, "application/json");
  }
  // The status of a POST; its body must be problem+json with the same status.
  int refused(const std::string& path, const std::string& body) {
    const auto reply = post(path, body);
    if (!reply) return -1;
    const json problem = json::parse(reply->body, nullptr, false);
    EXPECT_EQ(reply->get_header_value("Content-Type"), "application/problem+json");
    EXPECT_TRUE(problem.is_object() && problem.value("status", 0) == reply->status) << reply->body;
    return reply->status;
  }

  Result<coordinator::SlabLeaseReply> lease(uint32_t node_slab, const std::string& region) {
    const std::vector<coordinator::NodeSlabRequest> wanted{
        {node_slab, {RegionId{region}, SlabIndex{0}, 0}}};
    const auto answer = post("/v1/slabs/lease", coordinator::encode(wanted));
    EXPECT_EQ(answer->status, 200) << answer->body;
    FARPAGE_TRY(replies, coordinator::decode_slab_lease_replies(answer->body, 1));
    return std::move(replies.front());
  }

  std::unique_ptr<SlabPool> pool_;
  std::vector<std::unique_ptr<rdma::MemoryHost>> hosts_;
  std::optional<Lender> lender_;
  bool repairs_images_ = false;
  std::vector<std::string> images_;  // that it was told to copy
  std::unique_ptr<Agent> agent_;
  std::optional<httplib::Client> http_;
};

TEST_F(AgentTest, LeasesAndRevokes) {
  const auto reply = lease(1, "r1");
  ASSERT_TRUE(reply.has_value()) << reply.error().message();
  EXPECT_EQ(reply->bytes, kSlab);
  EXPECT_EQ(reply->rkeys.size(), 2U);
  EXPECT_EQ(reply->generation, Generation{11});

  const auto revoked = post("/v1/slabs/1/revoke", R"({"generation":11})");
  ASSERT_TRUE(revoked);
  EXPECT_EQ(revoked->status, 204);
  EXPECT_EQ(post("/v1/slabs/1/revoke", R"({"generation":11})")->status, 204) << "twice is once";
  EXPECT_EQ(refused("/v1/slabs/1/revoke", R"({"generation":10})"), 409);
}

TEST_F(AgentTest, SlabOfAnotherBorrowerIsAConflict) {
  const auto first = lease(0, "r1");
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_EQ(lease(0, "r1")->rkeys, first->rkeys);
  EXPECT_EQ(lease(0, "r2").error().code, ErrorCode::kConflict);
}

TEST_F(AgentTest, OneRequestLeasesManySlabsAndAnswersEachOnItsOwn) {
  const std::vector<coordinator::NodeSlabRequest> wanted{{1, {RegionId{"r1"}, SlabIndex{0}, 0}},
                                                         {2, {RegionId{"r1"}, SlabIndex{1}, 0}},
                                                         {0, {RegionId{"r1"}, SlabIndex{2}, 0}}};
  const auto answer = post("/v1/slabs/lease", coordinator::encode(wanted));
  ASSERT_EQ(answer->status, 200) << answer->body;
  const auto replies = coordinator::decode_slab_lease_replies(answer->body, wanted.size());
  ASSERT_TRUE(replies.has_value()) << replies.error().message();
  EXPECT_TRUE(replies->at(0).has_value());
  EXPECT_EQ(replies->at(1).error().code, ErrorCode::kNotFound) << "past the last slab";
  EXPECT_TRUE(replies->at(2).has_value());
  EXPECT_EQ(pool_->counts().leased, 2U);
}

TEST_F(AgentTest, LendsMoreAndLessWhenItIsTold) {
  EXPECT_EQ(post("/v1/slabs/add", R"({"slabs":[2,3]})")->status, 204);
  ASSERT_TRUE(lease(3, "r1").has_value());
  EXPECT_EQ(refused("/v1/slabs/add?in_all=65536", R"({"slabs":[4]})"), 507);
  EXPECT_EQ(refused("/v1/slabs/add?in_all=some", R"({"slabs":[4]})"), 400);
  EXPECT_EQ(refused("/v1/slabs/withdraw", R"({"slabs":[0,3]})"), 409) << "3 is leased";
  EXPECT_EQ(post("/v1/slabs/withdraw", R"({"slabs":[0,2]})")->status, 204);
  EXPECT_EQ(lease(0, "r2").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(pool_->slab_count(), 2U);
}

TEST_F(AgentTest, CopiesImagesWhenItIsTold) {
  EXPECT_EQ(http_->Post("/v1/images/vm-1/repair")->status, 501) << "this node does not";
  repairs_images_ = true;
  start("");
  EXPECT_EQ(http_->Post("/v1/images/vm-1/repair")->status, 204);
  EXPECT_EQ(refused("/v1/images/vm-1/repair", "{}"), 400) << "it takes no body";
  EXPECT_EQ(http_->Post("/v1/images/../repair")->status, 404);
  EXPECT_EQ(images_, std::vector<std::string>{"vm-1"});
}

TEST_F(AgentTest, ConnectsQueuePairs) {
  rdma::QueuePairEndpoint peer;
  peer.qpn = 41;
  peer.psn = 5;
  peer.gid = "::ffff:10.77.0.1";
  const auto reply = post("/v1/connect", coordinator::encode(peer));
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->status, 200) << reply->body;
  EXPECT_EQ(coordinator::decode_queue_pair_reply(reply->body)->qpn, 42U);
}

TEST_F(AgentTest, UnknownThingsAre404) {
  constexpr char kRevoke[] = R"({"generation":10})";
  EXPECT_EQ(refused("/v1/slabs/2/revoke", kRevoke), 404) << "past the last slab";
  EXPECT_EQ(refused("/v1/slabs/4294967296/revoke", kRevoke), 404) << "more than 32 bits";
  EXPECT_EQ(refused("/v1/slabs/-1/revoke", kRevoke), 404);
  EXPECT_EQ(refused("/v1/slabs/1/revoke/x", kRevoke), 404);
  EXPECT_EQ(refused("/v1/slabs/x/revoke", kRevoke), 404);
  EXPECT_EQ(refused("/v1/slabs/1/lease", kLease), 404);
  EXPECT_EQ(refused("/", ""), 404);
}

TEST_F(AgentTest, WrongBodiesNameTheField) {
  struct Case {
    const char* path;
    std::string body;
    const char* names;
  };
  const auto slabs = [](const std::string& one) { return "{\"slabs\":[{" + one + "}]}"; };
  for (const Case& c :
       {Case{"/v1/slabs/lease", "", ""},
        {"/v1/slabs/lease", "[]", ""},
        {"/v1/slabs/lease", R"({})", "slabs"},
        {"/v1/slabs/lease", slabs(R"("node_slab":0,"region":"r1","slab":0)"), "slabs[0].replica"},
        {"/v1/slabs/lease", slabs(R"("region":"r1","slab":0,"replica":0)"), "slabs[0].node_slab"},
        {"/v1/slabs/lease", slabs(R"("node_slab":0,"region":"../x","slab":0,"replica":0)"),
         "slabs[0].region"},
        {"/v1/slabs/lease", slabs(R"("node_slab":0,"region":"r","slab":-1,"replica":0)"),
         "slabs[0].slab"},
        {"/v1/slabs/lease", slabs(R"("node_slab":0,"region":"r","slab":0,"replica":0,"x":1)"), "x"},
        {"/v1/slabs/0/revoke", R"({"generation":"1"})", "generation"},
        {"/v1/slabs/0/revoke", R"({"generation":4294967296})", "generation"},
        {"/v1/slabs/add", R"({"slabs":[]})", "slabs"},
        {"/v1/slabs/add", R"({"slabs":[5,5]})", "slabs"},
        {"/v1/slabs/withdraw", R"({"slabs":[1048576]})", "slabs"},
        {"/v1/slabs/withdraw", R"({"slabs":{}})", "slabs"},
        {"/v1/connect", R"({"qpn":1})", ""}}) {
    const auto reply = post(c.path, c.body);
    ASSERT_TRUE(reply) << c.body;
    EXPECT_GE(reply->status, 400) << c.body;
    EXPECT_LT(reply->status, 500) << c.body;
    EXPECT_NE(reply->body.find(c.names), std::string::npos) << reply->body;
  }
  EXPECT_EQ(pool_->counts().free, 2U);
}

TEST_F(AgentTest, SurvivesAThousandMalformedBodies) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  const std::string valid = kLease;
  const char* paths[] = {"/v1/slabs/lease", "/v1/slabs/0/revoke", "/v1/connect"};
  for (int i = 0; i < 1000; ++i) {
    std::string body = valid.substr(0, random() % valid.size());
    for (unsigned flips = random() % 8; flips > 0 && !body.empty(); --flips)
      body[random() % body.size()] = static_cast<char>(random());
    const auto reply = post(paths[random() % 3], body);
    ASSERT_TRUE(reply) << "connection lost at " << i;
    ASSERT_GE(reply->status, 400) << body;
    ASSERT_LT(reply->status, 500) << body;
  }
  EXPECT_EQ(post("/v1/slabs/lease", valid)->status, 200) << "an honest client is unharmed";
}

TEST_F(AgentTest, OversizedBodyIsRefused) {
  const auto reply = post("/v1/slabs/lease", std::string(http::kMaxBodyBytes + 1, ' '));
  // The agent may close the connection before it has read all of it.
  if (reply) {
    EXPECT_EQ(reply->status, 413);
  }
  EXPECT_EQ(http_->Get("/healthz")->status, 200);
}

TEST_F(AgentTest, HeadersThatEscapeTheLimitsAreRefused) {
  struct Case {
    const char* name;
    const char* value;
    int status;
  };
  for (const Case& c : {Case{"Transfer-Encoding", "chunked", 501},
                        {"Content-Encoding", "gzip", 415},
                        {"Range", "bytes=0-1", 416}}) {
    const auto reply = http_->Get("/v1/status", httplib::Headers{{c.name, c.value}});
    ASSERT_TRUE(reply) << c.name;
    EXPECT_EQ(reply->status, c.status) << c.name;
  }
}

TEST_F(AgentTest, EveryCallButHealthNeedsTheToken) {
  start("0123456789abcdef");
  EXPECT_EQ(http_->Get("/healthz")->status, 200);
  for (const char* path : {"/v1/status", "/metrics"})
    EXPECT_EQ(http_->Get(path)->status, 401) << path;
  EXPECT_EQ(refused("/v1/slabs/lease", kLease), 401);
  http_->set_bearer_token_auth("0123456789abcdeX");
  EXPECT_EQ(refused("/v1/slabs/lease", kLease), 401);
  EXPECT_EQ(pool_->counts().leased, 0U);
  http_->set_bearer_token_auth("0123456789abcdef");
  EXPECT_EQ(post("/v1/slabs/lease", kLease)->status, 200);
  EXPECT_EQ(http_->Get("/v1/status")->status, 200);
}

TEST_F(AgentTest, MetricsAndStatusSayTheSame) {
  ASSERT_EQ(post("/v1/slabs/lease", kLease)->status, 200);
  const std::string metrics = http_->Get("/metrics")->body;
  EXPECT_NE(metrics.find("farpage_node_slabs{state=\"leased\"} 1"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("farpage_node_reads_total{transport=\"tcp\"} 7"), std::string::npos);
  const json status = json::parse(http_->Get("/v1/status")->body);
  EXPECT_EQ(status["slabs"]["leased"], 1);
  EXPECT_EQ(status["transports"][0]["counters"]["reads"], 7);
  EXPECT_EQ(http_->Get("/v1/status")->body.find("rkey"), std::string::npos);
}

}  // namespace
}  // namespace farpage::node
