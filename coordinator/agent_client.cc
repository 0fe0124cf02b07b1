#include "coordinator/agent_client.h"

#include <fmt/format.h>

#include "coordinator/api_json.h"
#include "coordinator/http_caller.h"

namespace farpage::coordinator {
namespace {

class HttpAgentClient final : public AgentClient {
 public:
  explicit HttpAgentClient(AgentClientOptions options) : options_(std::move(options)) {}

  Result<SlabLeaseReply> lease(const std::string& agent_url, uint32_t node_slab,
                               const SlabLeaseRequest& request) override {
    FARPAGE_TRY(answer,
                post(agent_url, fmt::format("/v1/slabs/{}/lease", node_slab), encode(request)));
    return understood(agent_url, decode_slab_lease_reply(answer));
  }

  Status revoke(const std::string& agent_url, uint32_t node_slab, Generation generation) override {
    FARPAGE_TRY_VOID(post(agent_url, fmt::format("/v1/slabs/{}/revoke", node_slab),
                          encode(SlabRevokeRequest{generation})));
    return {};
  }

  Result<rdma::QueuePairEndpoint> connect(const std::string& agent_url,
                                          const rdma::QueuePairEndpoint& peer) override {
    FARPAGE_TRY(answer, post(agent_url, "/v1/connect", encode(peer)));
    return understood(agent_url, decode_queue_pair_reply(answer));
  }

  Result<uint64_t> incarnation(const std::string& agent_url) override {
    FARPAGE_TRY(answer, call("GET", agent_url, "/v1/status", ""));
    return understood(agent_url, decode_incarnation(answer));
  }

 private:
  // A malformed reply is the node's error, not the caller's.
  template <typename T>
  static Result<T> understood(const std::string& agent_url, Result<T> reply) {
    if (reply) return reply;
    return fail(ErrorCode::kIo,
                fmt::format("{} sent an invalid answer: {}", agent_url, reply.error().message()));
  }

  Result<std::string> post(const std::string& agent_url, const std::string& path,
                           std::string body) const {
    return call("POST", agent_url, path, std::move(body));
  }

  Result<std::string> call(const char* method, const std::string& agent_url,
                           const std::string& path, std::string body) const {
    FARPAGE_TRY(url, parse_http_url(agent_url));
    return HttpCaller(url, options_.token).call(method, path, std::move(body), options_.timeout);
  }

  const AgentClientOptions options_;
};

}  // namespace

std::unique_ptr<AgentClient> make_http_agent_client(AgentClientOptions options) {
  return std::make_unique<HttpAgentClient>(std::move(options));
}

}  // namespace farpage::coordinator
