#include "node/agent.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>
#include <vector>

#include "coordinator/api_json.h"
#include "http/server.h"

namespace farpage::node {
namespace {

constexpr uint32_t kThreads = 4;  // one coordinator, and occasional operators

// The number in /v1/slabs/{node_slab}/...
Result<uint32_t> node_slab_of(const http::Request& request) {
  const std::string& text = request.ids.front();
  uint32_t slab = 0;
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), slab);
  if (problem != std::errc() || rest != text.data() + text.size())
    return fail(ErrorCode::kNotFound, fmt::format("node_slab {} is not a slab number", text));
  return slab;
}

Result<uint32_t> number_of(const std::string& text) {
  uint32_t number = 0;
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc() || rest != text.data() + text.size())
    return fail(ErrorCode::kInvalid, fmt::format("query in_all: '{}' is not a number", text));
  return number;
}

http::Reply reply_of(const Result<std::string>& body) {
  if (!body) return http::problem_reply(body.error());
  return {200, *body};
}

class HttpAgent final : public Agent {
 public:
  HttpAgent(Lender& lender, std::function<NodeReport()> report)
      : lender_(lender), report_(std::move(report)) {}

  Status listen(const AgentOptions& options) {
    repair_image_ = options.repair_image;
    http::ServerOptions server;
    server.host = options.host;
    server.port = options.port;
    server.token = options.token;
    server.threads = kThreads;
    auto made =
        http::Server::create(std::move(server), routes(),
                             [](const std::string&, const std::string&, int, Nanoseconds) {});
    if (!made)
      return fail_with(fmt::format("--listen-agent {}:{}", options.host, options.port),
                       std::move(made).error());
    server_ = std::move(*made);
    return {};
  }

  uint16_t port() const override { return server_->port(); }

 private:
  std::vector<http::Route> routes() {
    std::vector<http::Route> routes;
    const auto get = [&](const char* pattern, auto handler,
                         http::Access access = http::Access::kToken) {
      routes.push_back({"GET", pattern, {}, std::move(handler), http::Body::kNone, access});
    };
    const auto post = [&](const char* pattern, auto handler) {
      routes.push_back({"POST", pattern, {}, std::move(handler), http::Body::kJson});
    };
    post("/v1/slabs/lease",
         [this](const http::Request& request) { return reply_of(lease(request)); });
    post("/v1/slabs/{node_slab}/revoke", [this](const http::Request& request) {
      const Status done = revoke(request);
      return done ? http::Reply{204, ""} : http::problem_reply(done.error());
    });
    routes.push_back({"POST",
                      "/v1/slabs/add",
                      {"in_all"},
                      [this](const http::Request& request) {
                        const Status done = add(request);
                        return done ? http::Reply{204, ""} : http::problem_reply(done.error());
                      },
                      http::Body::kJson});
    post("/v1/slabs/withdraw", [this](const http::Request& request) {
      const Status done = withdraw(request);
      return done ? http::Reply{204, ""} : http::problem_reply(done.error());
    });
    routes.push_back(
        {"POST", "/v1/images/{image}/repair", {}, [this](const http::Request& request) {
           const Status begun = repair_image(request);
           return begun ? http::Reply{204, ""} : http::problem_reply(begun.error());
         }});
    post("/v1/connect",
         [this](const http::Request& request) { return reply_of(connect(request)); });
    get("/v1/status", [this](const http::Request&) {
      return http::Reply{200, status_json(report_())};
    });
    get("/metrics", [this](const http::Request&) {
      return http::Reply{200, prometheus_text(report_()), "text/plain; version=0.0.4"};
    });
    get(
        "/healthz",
        [](const http::Request&) {
          return http::Reply{200, "ok\n", "text/plain"};
        },
        http::Access::kOpen);
    return routes;
  }

  Result<std::string> lease(const http::Request& request) {
    FARPAGE_TRY(wanted, coordinator::decode_slab_lease_requests(request.body));
    std::vector<Result<coordinator::SlabLeaseReply>> replies;
    for (const coordinator::NodeSlabRequest& slab : wanted)
      replies.push_back(lender_.lease(slab.node_slab, slab.lease));
    return coordinator::encode(replies);
  }

  Status revoke(const http::Request& request) {
    FARPAGE_TRY(node_slab, node_slab_of(request));
    FARPAGE_TRY(order, coordinator::decode_slab_revoke_request(request.body));
    return lender_.revoke(node_slab, order.generation);
  }

  Status add(const http::Request& request) {
    FARPAGE_TRY(slabs, coordinator::decode_node_slabs(request.body));
    uint64_t in_all = slabs.size();
    if (const auto told = request.query.find("in_all"); told != request.query.end()) {
      FARPAGE_TRY(number, number_of(told->second));
      in_all = number;
    }
    return lender_.add(slabs, in_all);
  }

  Status withdraw(const http::Request& request) {
    FARPAGE_TRY(slabs, coordinator::decode_node_slabs(request.body));
    return lender_.withdraw(slabs);
  }

  Result<std::string> connect(const http::Request& request) {
    FARPAGE_TRY(peer, coordinator::decode_queue_pair_endpoint(request.body));
    FARPAGE_TRY(ours, lender_.connect(peer));
    return coordinator::encode(ours);
  }

  Status repair_image(const http::Request& request) {
    if (!repair_image_)
      return fail(ErrorCode::kUnsupported, "this node copies no images (--repair-rate off)");
    repair_image_(ImageId{request.ids.front()});
    return {};
  }

  Lender& lender_;
  const std::function<NodeReport()> report_;
  std::function<void(const ImageId&)> repair_image_;
  std::unique_ptr<http::Server> server_;  // last: its threads use the other members
};

}  // namespace

Result<std::unique_ptr<Agent>> Agent::create(const AgentOptions& options, Lender& lender,
                                             std::function<NodeReport()> report) {
  auto agent = std::make_unique<HttpAgent>(lender, std::move(report));
  FARPAGE_TRY_VOID(agent->listen(options));
  return std::unique_ptr<Agent>(std::move(agent));
}

}  // namespace farpage::node
