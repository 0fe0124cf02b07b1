#include "coordinator/client.h"

#include <fmt/format.h>

#include "coordinator/api_json.h"
#include "coordinator/leader_caller.h"

namespace farpage::coordinator {
namespace {

using rdma::QueuePairEndpoint;

class HttpClient final : public Client {
 public:
  HttpClient(std::unique_ptr<LeaderCaller> caller, Milliseconds timeout)
      : caller_(std::move(caller)), timeout_(timeout) {}

  Result<NodeInfo> join(const NodeJoin& node) override {
    FARPAGE_TRY(answer, call("POST", "/v1/nodes", encode(node)));
    return decode_node_info(answer);
  }
  Status heartbeat_node(const NodeId& node, const NodeHeartbeat& heartbeat) override {
    return call_for_status("PUT", of_node(node, "/heartbeat"), encode(heartbeat));
  }
  Status remove_node(const NodeId& node, bool force) override {
    return call_for_status("DELETE", of_node(node, force ? "?force=true" : ""), "");
  }
  Status drain_node(const NodeId& node) override {
    return call_for_status("POST", of_node(node, "/drain"), "");
  }

  Status cordon_node(const NodeId& node) override {
    return call_for_status("POST", of_node(node, "/cordon"), "");
  }
  Status uncordon_node(const NodeId& node) override {
    return call_for_status("POST", of_node(node, "/uncordon"), "");
  }

  Result<RegionInfo> create_region(const RegionCreate& region) override {
    const uint64_t slabs = region.slab_bytes == 0 ? 0 : region.bytes / region.slab_bytes + 1;
    FARPAGE_TRY(answer, caller_->call("POST", "/v1/regions", encode(region),
                                      lease_timeout(slabs, region.replicas)));
    return decode_region_info(answer);
  }
  Result<RegionInfo> region(const RegionId& region) override {
    FARPAGE_TRY(answer, call("GET", of_region(region, ""), ""));
    return decode_region_info(answer);
  }
  Result<std::vector<Lease>> lease_slabs(const RegionId& region,
                                         const std::vector<SlabIndex>& slabs) override {
    FARPAGE_TRY(answer, caller_->call("POST", of_region(region, "/slabs"), encode(slabs),
                                      lease_timeout(slabs.size(), kMaxReplicas)));
    return decode_lease_list(answer);
  }
  Status release_slabs(const RegionId& region, const std::vector<SlabIndex>& slabs) override {
    const auto answer = caller_->call("POST", of_region(region, "/slabs/release"), encode(slabs),
                                      lease_timeout(slabs.size(), kMaxReplicas));
    if (!answer) return tl::unexpected(answer.error());
    return {};
  }
  Result<RepairBegun> begin_repair(const RegionId& region, const RepairBegin& repair) override {
    FARPAGE_TRY(answer, caller_->call("POST", of_region(region, "/repairs"), encode(repair),
                                      lease_timeout(1, kMaxReplicas)));
    return decode_repair_begun(answer);
  }
  Status complete_repair(const RegionId& region, const RepairComplete& repair) override {
    const auto answer = caller_->call("POST", of_region(region, "/repairs/complete"),
                                      encode(repair), lease_timeout(1, kMaxReplicas));
    if (!answer) return tl::unexpected(answer.error());
    return {};
  }
  Result<RegionHeard> heartbeat_region(const RegionId& region,
                                       const RegionHeartbeat& heartbeat) override {
    FARPAGE_TRY(answer, call("PUT", of_region(region, "/heartbeat"), encode(heartbeat)));
    return decode_region_heard(answer);
  }
  Status delete_region(const RegionId& region) override {
    return call_for_status("DELETE", of_region(region, ""), "");
  }
  Result<QueuePairEndpoint> exchange(const NodeId& node, const QueuePairEndpoint& ours) override {
    // The coordinator calls the node; allow it the time to report that the node did not answer.
    FARPAGE_TRY(answer, caller_->call("POST", of_node(node, "/rdma/endpoint"), encode(ours),
                                      lease_timeout(0, 0)));
    return decode_queue_pair_reply(answer);
  }

  Result<std::vector<NodeInfo>> nodes() override {
    FARPAGE_TRY(answer, call("GET", "/v1/nodes", ""));
    return decode_node_list(answer);
  }
  Result<NodeInfo> node(const NodeId& node) override {
    FARPAGE_TRY(answer, call("GET", of_node(node, ""), ""));
    return decode_node_info(answer);
  }
  Result<std::vector<RegionInfo>> regions() override {
    FARPAGE_TRY(answer, call("GET", "/v1/regions", ""));
    return decode_region_list(answer);
  }
  Result<EventBatch> events(uint64_t since, Milliseconds timeout) override {
    const std::string path = fmt::format("/v1/events?since={}&timeout={}.{:03}", since,
                                         timeout.count() / 1000, timeout.count() % 1000);
    FARPAGE_TRY(answer, caller_->call("GET", path, "", timeout_ + timeout));
    return decode_event_batch(answer);
  }
  Result<std::string> get(const std::string& path) override { return call("GET", path, ""); }

 private:
  Result<std::string> call(const char* method, const std::string& path,
                           const std::string& body) const {
    return caller_->call(method, path, body, timeout_);
  }
  Status call_for_status(const char* method, const std::string& path,
                         const std::string& body) const {
    const auto answer = call(method, path, body);
    if (!answer) return tl::unexpected(answer.error());
    return {};
  }
  // The coordinator calls nodes one slab at a time; a silent node costs its whole timeout.
  Milliseconds lease_timeout(uint64_t slabs, uint32_t replicas) const {
    return timeout_ + kAgentAllowance +
           kTimePerSlab * static_cast<int64_t>(std::min<uint64_t>(slabs, kMaxSlabsPerRegion)) *
               replicas;
  }
  static std::string of_node(const NodeId& node, std::string_view rest) {
    return fmt::format("/v1/nodes/{}{}", node.value, rest);
  }
  static std::string of_region(const RegionId& region, std::string_view rest) {
    return fmt::format("/v1/regions/{}{}", region.value, rest);
  }

  const std::unique_ptr<LeaderCaller> caller_;
  const Milliseconds timeout_;
};

}  // namespace

Result<std::unique_ptr<Client>> Client::create(const ClientOptions& options) {
  FARPAGE_TRY(caller, LeaderCaller::create(options.url, options.token));
  if (options.timeout <= Milliseconds(0))
    return fail(ErrorCode::kInvalid, "coordinator: timeout must be more than 0 ms");
  return std::make_unique<HttpClient>(std::move(caller), options.timeout);
}

}  // namespace farpage::coordinator
