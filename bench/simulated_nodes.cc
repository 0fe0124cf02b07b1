#include "bench/simulated_nodes.h"

#include <fmt/format.h>

#include <charconv>
#include <vector>

#include "coordinator/api_json.h"
#include "http/url.h"

namespace farpage::bench {
namespace {

constexpr uint32_t kThreads = 4;

}  // namespace

Result<std::unique_ptr<SimulatedNodes>> SimulatedNodes::create(uint32_t nodes,
                                                               uint32_t slabs_per_node,
                                                               uint64_t slab_bytes) {
  if (nodes > 256 * 256) return fail(ErrorCode::kInvalid, "--nodes: at most 65536");
  std::unique_ptr<SimulatedNodes> simulated(new SimulatedNodes(slabs_per_node, slab_bytes));
  SimulatedNodes* const self = simulated.get();
  std::vector<http::Route> routes;
  routes.push_back({"POST",
                    "/v1/slabs/lease",
                    {},
                    [self](const http::Request& request) { return self->lease(request); },
                    http::Body::kJson});
  routes.push_back({"POST",
                    "/v1/slabs/{node_slab}/revoke",
                    {},
                    [self](const http::Request& request) { return self->revoke(request); },
                    http::Body::kJson});
  http::ServerOptions options;
  options.host = "0.0.0.0";  // all of 127.0.0.0/8
  options.threads = kThreads;
  FARPAGE_TRY(server, http::Server::create(
                          options, std::move(routes),
                          [](const std::string&, const std::string&, int, Nanoseconds) {}));
  simulated->server_ = std::move(server);
  return simulated;
}

coordinator::NodeJoin SimulatedNodes::join_of(uint32_t index) const {
  coordinator::NodeJoin join;
  join.id = NodeId{fmt::format("simulated-{}", index)};
  join.incarnation = index + 1;
  const std::string host = fmt::format("127.1.{}.{}", index / 256, index % 256);
  join.agent_url = http::to_text({host, server_->port()});
  join.slab_bytes = slab_bytes_;
  join.capacity_bytes = slabs_per_node_ * slab_bytes_;
  join.version = FARPAGE_VERSION;
  join.transports.push_back({rdma::TransportKind::kTcp, fmt::format("{}:{}", host, 7072)});
  return join;
}

http::Reply SimulatedNodes::lease(const http::Request& request) {
  const auto wanted = coordinator::decode_slab_lease_requests(request.body);
  if (!wanted) return http::problem_reply(wanted.error());
  std::vector<Result<coordinator::SlabLeaseReply>> replies;
  const MutexLock lock(mutex_);
  for (const coordinator::NodeSlabRequest& slab : *wanted) {
    const Lease asked{slab.lease.region, slab.lease.slab, slab.lease.replica, slab.node_slab};
    // A request whose answer was lost comes again.
    const auto [known, is_new] = generations_.try_emplace(asked, last_generation_ + 1);
    if (is_new) leases_[++last_generation_] = asked;
    coordinator::SlabLeaseReply reply;
    reply.address = RemoteAddress{(slab.node_slab + 1) * slab_bytes_};
    reply.bytes = slab_bytes_;
    reply.generation = Generation{known->second};
    reply.rkeys[rdma::TransportKind::kTcp] =
        RemoteKey{known->second, {known->second, slab.node_slab}};
    replies.emplace_back(std::move(reply));
  }
  return http::Reply{200, coordinator::encode(replies), "application/json", {}};
}

http::Reply SimulatedNodes::revoke(const http::Request& request) {
  const auto order = coordinator::decode_slab_revoke_request(request.body);
  if (!order) return http::problem_reply(order.error());
  const std::string& text = request.ids.front();
  uint32_t slab = 0;
  (void)std::from_chars(text.data(), text.data() + text.size(), slab);
  const MutexLock lock(mutex_);
  const uint32_t generation = order->generation.value;
  const auto leased = leases_.find(generation);
  const bool has_ended =
      leased == leases_.end() && generation != 0 && generation <= last_generation_;
  if (!has_ended && (leased == leases_.end() || leased->second.node_slab != slab)) {
    ++wrong_revocations_;
    return http::problem_reply(
        Error{ErrorCode::kConflict, "the slab is not leased with this generation", 0});
  }
  if (!has_ended) {
    generations_.erase(leased->second);
    leases_.erase(leased);
  }
  return http::Reply{204, "", "", {}};
}

uint64_t SimulatedNodes::leased() const {
  const MutexLock lock(mutex_);
  return leases_.size();
}

uint64_t SimulatedNodes::wrong_revocations() const {
  const MutexLock lock(mutex_);
  return wrong_revocations_;
}

}  // namespace farpage::bench
