// The HTTP side of AgentClient against a real server. Whether the node may have executed a request
// decides how a lease is undone, so the tests distinguish each kind of failure.
#include "coordinator/agent_client.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <mutex>
#include <string>
#include <utility>

#include "base/fd.h"
#include "coordinator/api_json.h"
#include "http/server.h"
#include "tests/unit/coordinator/fake_agents.h"

namespace farpage::coordinator {
namespace {

// An agent that records the last request and gives every request the same answer.
class AgentClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    http::ServerOptions options;
    options.token = "agent-token";
    options.threads = 2;
    std::vector<http::Route> routes;
    const auto reply = [this](const http::Request& request) {
      const std::lock_guard lock(mutex_);
      asked_ = request;
      return answer_;
    };
    routes.push_back({"POST", "/v1/slabs/lease", {}, reply, http::Body::kJson});
    routes.push_back({"POST", "/v1/slabs/{node_slab}/revoke", {}, reply, http::Body::kJson});
    routes.push_back({"POST", "/v1/connect", {}, reply, http::Body::kJson});
    auto server =
        http::Server::create(options, std::move(routes),
                             [](const std::string&, const std::string&, int, Nanoseconds) {});
    ASSERT_TRUE(server.has_value()) << server.error().message();
    server_ = std::move(*server);
    url_ = "http://127.0.0.1:" + std::to_string(server_->port());
  }

  void answer_with(http::Reply reply) {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(reply);
  }
  http::Request asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  static std::unique_ptr<AgentClient> client(const std::string& token = "agent-token",
                                             Milliseconds timeout = Milliseconds(10000)) {
    return make_http_agent_client(AgentClientOptions{token, timeout});
  }
  ErrorCode lease_failure() {
    const auto reply = client()->lease(url_, request_).front();
    return reply ? ErrorCode::kUnsupported : reply.error().code;
  }

  const std::vector<NodeSlabRequest> request_{{3, {RegionId{"r"}, SlabIndex{7}, 1}}};
  std::mutex mutex_;
  http::Request asked_;  // guarded by mutex_
  http::Reply answer_;   // guarded by mutex_
  std::unique_ptr<http::Server> server_;
  std::string url_;
};

TEST_F(AgentClientTest, LeasesRevokesAndConnects) {
  SlabLeaseReply granted;
  granted.address = RemoteAddress{4096};
  granted.bytes = kMinSlabBytes;
  granted.rkeys = {{rdma::TransportKind::kTcp, RemoteKey{5}}};
  granted.generation = Generation{9};
  const std::vector<NodeSlabRequest> wanted{request_.front(),
                                            {5, {RegionId{"r"}, SlabIndex{8}, 1}}};
  answer_with({200, encode({granted, fail(ErrorCode::kConflict, "lent to another")})});
  const auto replies = client()->lease(url_, wanted);
  ASSERT_EQ(replies.size(), 2U);
  ASSERT_TRUE(replies[0].has_value()) << replies[0].error().message();
  EXPECT_EQ(replies[0]->rkeys, granted.rkeys);
  EXPECT_EQ(replies[0]->generation, granted.generation);
  EXPECT_EQ(replies[1].error().code, ErrorCode::kConflict);
  EXPECT_EQ(replies[1].error().context, "lent to another");
  const auto seen = decode_slab_lease_requests(asked().body);
  ASSERT_EQ(seen->size(), 2U);
  EXPECT_EQ(seen->at(1).node_slab, 5U);
  EXPECT_EQ(seen->at(1).lease.slab, SlabIndex{8});
  answer_with(http::Reply{204, "", "", {}});
  ASSERT_TRUE(client()->revoke(url_, 4, Generation{9}).has_value());
  EXPECT_EQ(asked().ids, std::vector<std::string>{"4"});
  EXPECT_EQ(decode_slab_revoke_request(asked().body)->generation, Generation{9});
  answer_with(http::Reply{200, encode(test_endpoint())});
  const auto endpoint = client()->connect(url_, test_endpoint());
  ASSERT_TRUE(endpoint.has_value()) << endpoint.error().message();
  EXPECT_EQ(*endpoint, test_endpoint());
}

TEST_F(AgentClientTest, RefusalsKeepTheirCode) {
  answer_with(http::problem_reply(Error{ErrorCode::kConflict, "lent to another", 0}));
  EXPECT_EQ(lease_failure(), ErrorCode::kConflict);
  EXPECT_EQ(client()->revoke(url_, 3, Generation{1}).error().code, ErrorCode::kConflict);
  answer_with(http::problem_reply(Error{ErrorCode::kUnavailable, "is leaving", 0}));
  EXPECT_EQ(lease_failure(), ErrorCode::kUnavailable);
  EXPECT_EQ(client("wrong")->lease(url_, request_).front().error().code, ErrorCode::kDenied);
}

TEST_F(AgentClientTest, NonsenseIsTheNodesFaultAndMayHaveBeenGranted) {
  for (const char* body : {"", "[]", "{}", R"({"slabs":[]})", R"({"slabs":[{},{}]})",
                           R"({"slabs":[{"address":1,"bytes":1,"rkeys":{},"generation":1}]})"}) {
    answer_with({200, body});
    EXPECT_EQ(lease_failure(), ErrorCode::kIo) << body;
  }
}

TEST_F(AgentClientTest, EverySlabHasAnAnswerHoweverManyAreAsked) {
  answer_with(http::problem_reply(Error{ErrorCode::kUnavailable, "is leaving", 0}));
  const std::vector<NodeSlabRequest> many(kMaxSlabsPerLease + 3, request_.front());
  EXPECT_EQ(client()->lease(url_, many).size(), many.size());
  EXPECT_EQ(decode_slab_lease_requests(asked().body)->size(), 3U) << "the rest of them";
}

TEST_F(AgentClientTest, NodeThatWasNotReachedSawNothing) {
  server_->stop();
  server_.reset();
  EXPECT_EQ(lease_failure(), ErrorCode::kUnavailable);
}

TEST_F(AgentClientTest, NodeThatAcceptsAndIsSilentMayHaveDoneIt) {
  const Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string silent = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const auto reply = client("", Milliseconds(100))->lease(silent, request_).front();
  ASSERT_FALSE(reply.has_value());
  EXPECT_EQ(reply.error().code, ErrorCode::kTimedOut);
}

}  // namespace
}  // namespace farpage::coordinator
