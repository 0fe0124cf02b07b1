#include "coordinator/agent_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "coordinator/api_json.h"
#include "http/caller.h"

namespace farpage::coordinator {
namespace {

class HttpAgentClient final : public AgentClient {
 public:
  explicit HttpAgentClient(AgentClientOptions options) : options_(std::move(options)) {}

  std::vector<Result<SlabLeaseReply>> lease(const std::string& agent_url,
                                            std::span<const NodeSlabRequest> slabs) override {
    std::vector<Result<SlabLeaseReply>> replies;
    while (!slabs.empty()) {
      const size_t count = std::min(slabs.size(), kMaxSlabsPerLease);
      auto some = lease_some(agent_url, slabs.first(count));
      if (some)
        std::move(some->begin(), some->end(), std::back_inserter(replies));
      else
        replies.insert(replies.end(), count, tl::unexpected(some.error()));
      slabs = slabs.subspan(count);
    }
    return replies;
  }

  Status revoke(const std::string& agent_url, uint32_t node_slab, Generation generation) override {
    FARPAGE_TRY_VOID(post(agent_url, fmt::format("/v1/slabs/{}/revoke", node_slab),
                          encode(SlabRevokeRequest{generation})));
    return {};
  }

  Status add_slabs(const std::string& agent_url, std::span<const uint32_t> node_slabs,
                   uint32_t in_all) override {
    return change_slabs(agent_url, fmt::format("/v1/slabs/add?in_all={}", in_all), node_slabs);
  }
  Status withdraw_slabs(const std::string& agent_url,
                        std::span<const uint32_t> node_slabs) override {
    return change_slabs(agent_url, "/v1/slabs/withdraw", node_slabs);
  }

  Status repair_image(const std::string& agent_url, const ImageId& image) override {
    FARPAGE_TRY_VOID(post(agent_url, fmt::format("/v1/images/{}/repair", image.value), ""));
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
  Result<std::vector<Result<SlabLeaseReply>>> lease_some(const std::string& agent_url,
                                                         std::span<const NodeSlabRequest> slabs) {
    FARPAGE_TRY(answer, post(agent_url, "/v1/slabs/lease", encode(slabs)));
    return understood(agent_url, decode_slab_lease_replies(answer, slabs.size()));
  }

  // A malformed reply is the node's error, not the caller's.
  template <typename T>
  static Result<T> understood(const std::string& agent_url, Result<T> reply) {
    if (reply) return reply;
    return fail(ErrorCode::kIo,
                fmt::format("{} sent an invalid answer: {}", agent_url, reply.error().message()));
  }

  Status change_slabs(const std::string& agent_url, const std::string& path,
                      std::span<const uint32_t> node_slabs) const {
    FARPAGE_TRY(url, http::parse_url(agent_url));
    FARPAGE_TRY_VOID(
        http::Caller(url, options_.token)
            .call("POST", path, encode_node_slabs(node_slabs), options_.memory_timeout));
    return {};
  }

  Result<std::string> post(const std::string& agent_url, const std::string& path,
                           std::string body) const {
    return call("POST", agent_url, path, std::move(body));
  }

  Result<std::string> call(const char* method, const std::string& agent_url,
                           const std::string& path, std::string body) const {
    FARPAGE_TRY(url, http::parse_url(agent_url));
    return http::Caller(url, options_.token).call(method, path, std::move(body), options_.timeout);
  }

  const AgentClientOptions options_;
};

}  // namespace

std::unique_ptr<AgentClient> make_http_agent_client(AgentClientOptions options) {
  return std::make_unique<HttpAgentClient>(std::move(options));
}

}  // namespace farpage::coordinator
