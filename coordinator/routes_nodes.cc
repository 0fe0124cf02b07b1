#include <optional>

#include "coordinator/api_json.h"
#include "coordinator/routes.h"

namespace farpage::coordinator {
namespace {

constexpr int kGone = 410;

http::Reply join(Cluster& cluster, const http::Request& request) {
  const auto join = decode_node_join(request.body);
  if (!join) return http::problem_reply(join.error());
  const auto joined = cluster.join(*join);
  if (!joined) return http::problem_reply(joined.error());
  http::Reply reply;
  reply.status = joined->created ? 201 : 200;
  reply.body = encode(joined->node);
  if (joined->created) reply.headers["Location"] = "/v1/nodes/" + join->id.value;
  return reply;
}

http::Reply heartbeat_node(Cluster& cluster, const http::Request& request) {
  auto heartbeat = decode_node_heartbeat(request.body);
  if (!heartbeat) return http::problem_reply(heartbeat.error());
  const Status status = cluster.heartbeat_node(NodeId{request.ids[0]}, std::move(*heartbeat));
  // Not 404: the path is right, and the node must join again.
  if (!status && status.error().code == ErrorCode::kNotFound)
    return http::problem_reply(kGone, status.error());
  return reply_to(status);
}

http::Reply show_node(Cluster& cluster, const http::Request& request) {
  const auto node = cluster.node(NodeId{request.ids[0]});
  if (!node) return http::problem_reply(node.error());
  return http::Reply{200, encode(*node)};
}

http::Reply lend(Cluster& cluster, const http::Request& request) {
  const auto lend = decode_node_lend(request.body);
  if (!lend) return http::problem_reply(lend.error());
  const auto node = cluster.lend(NodeId{request.ids[0]}, *lend);
  if (!node) return http::problem_reply(node.error());
  return http::Reply{200, encode(*node)};
}

http::Reply rebalance(Cluster& cluster, const http::Request& request) {
  const auto rebalance = decode_rebalance(request.body);
  if (!rebalance) return http::problem_reply(rebalance.error());
  const auto done = cluster.rebalance(*rebalance);
  if (!done) return http::problem_reply(done.error());
  return http::Reply{200, encode(*done)};
}

http::Reply remove_node(Cluster& cluster, const http::Request& request) {
  bool force = false;
  if (const auto it = request.query.find("force"); it != request.query.end()) {
    if (it->second != "true" && it->second != "false")
      return http::problem_reply(Error{ErrorCode::kInvalid,
                                       "the query parameter force must be true or "
                                       "false",
                                       0});
    force = it->second == "true";
  }
  return reply_to(cluster.remove_node(NodeId{request.ids[0]}, force));
}

http::Reply exchange(Cluster& cluster, const http::Request& request) {
  const auto peer = decode_queue_pair_endpoint(request.body);
  if (!peer) return http::problem_reply(peer.error());
  const auto theirs = cluster.exchange(NodeId{request.ids[0]}, *peer);
  if (!theirs) return http::problem_reply(theirs.error());
  return http::Reply{200, encode(*theirs)};
}

http::Reply endpoints(Cluster& cluster, const http::Request& request) {
  const auto endpoints = cluster.endpoints(NodeId{request.ids[0]});
  if (!endpoints) return http::problem_reply(endpoints.error());
  return http::Reply{200, encode(*endpoints)};
}

}  // namespace

std::vector<http::Route> node_routes(RouteContext& context) {
  const auto set = [&context](NodeService service) {
    return context.with([service](Cluster& cluster, const http::Request& request) {
      return reply_to(cluster.set_service(NodeId{request.ids[0]}, service));
    });
  };
  return {
      {"POST", "/v1/nodes", {}, context.with(join), http::Body::kJson},
      {"GET", "/v1/nodes", {}, context.with([](Cluster& cluster, const http::Request&) {
         return http::Reply{200, encode(cluster.nodes())};
       })},
      {"GET", "/v1/nodes/{id}", {}, context.with(show_node)},
      {"DELETE", "/v1/nodes/{id}", {"force"}, context.with(remove_node)},
      {"PUT", "/v1/nodes/{id}/heartbeat", {}, context.with(heartbeat_node), http::Body::kJson},
      {"POST", "/v1/rebalance", {}, context.with(rebalance), http::Body::kJson},
      {"PUT", "/v1/nodes/{id}/lend", {}, context.with(lend), http::Body::kJson},
      {"POST", "/v1/nodes/{id}/drain", {}, set(NodeService::kDraining)},
      {"POST", "/v1/nodes/{id}/cordon", {}, set(NodeService::kCordoned)},
      {"POST", "/v1/nodes/{id}/uncordon", {}, set(NodeService::kFull)},
      {"POST", "/v1/nodes/{id}/rdma/endpoint", {}, context.with(exchange), http::Body::kJson},
      {"GET", "/v1/nodes/{id}/rdma/endpoint", {}, context.with(endpoints)},
  };
}

}  // namespace farpage::coordinator
