#include "coordinator/api_json.h"
#include "coordinator/routes.h"

namespace farpage::coordinator {
namespace {

constexpr int kGone = 410;

HttpReply join(Cluster& cluster, const HttpRequest& request) {
  const auto join = decode_node_join(request.body);
  if (!join) return problem_reply(join.error());
  const auto joined = cluster.join(*join);
  if (!joined) return problem_reply(joined.error());
  HttpReply reply;
  reply.status = joined->created ? 201 : 200;
  reply.body = encode(joined->node);
  if (joined->created) reply.headers["Location"] = "/v1/nodes/" + join->id.value;
  return reply;
}

HttpReply heartbeat_node(Cluster& cluster, const HttpRequest& request) {
  const auto heartbeat = decode_node_heartbeat(request.body);
  if (!heartbeat) return problem_reply(heartbeat.error());
  const Status status = cluster.heartbeat_node(NodeId{request.ids[0]}, *heartbeat);
  // Not 404: the path is right, and the node must join again.
  if (!status && status.error().code == ErrorCode::kNotFound)
    return problem_reply(kGone, status.error());
  return reply_to(status);
}

HttpReply show_node(Cluster& cluster, const HttpRequest& request) {
  const auto node = cluster.node(NodeId{request.ids[0]});
  if (!node) return problem_reply(node.error());
  return HttpReply{200, encode(*node)};
}

HttpReply remove_node(Cluster& cluster, const HttpRequest& request) {
  bool force = false;
  if (const auto it = request.query.find("force"); it != request.query.end()) {
    if (it->second != "true" && it->second != "false")
      return problem_reply(Error{ErrorCode::kInvalid,
                                 "the query parameter force must be true or "
                                 "false",
                                 0});
    force = it->second == "true";
  }
  return reply_to(cluster.remove_node(NodeId{request.ids[0]}, force));
}

HttpReply exchange(Cluster& cluster, const HttpRequest& request) {
  const auto peer = decode_queue_pair_endpoint(request.body);
  if (!peer) return problem_reply(peer.error());
  const auto theirs = cluster.exchange(NodeId{request.ids[0]}, *peer);
  if (!theirs) return problem_reply(theirs.error());
  return HttpReply{200, encode(*theirs)};
}

HttpReply endpoints(Cluster& cluster, const HttpRequest& request) {
  const auto endpoints = cluster.endpoints(NodeId{request.ids[0]});
  if (!endpoints) return problem_reply(endpoints.error());
  return HttpReply{200, encode(*endpoints)};
}

}  // namespace

std::vector<Route> node_routes(RouteContext& context) {
  Cluster& cluster = context.cluster;
  const auto with = [&cluster](HttpReply (*handler)(Cluster&, const HttpRequest&)) {
    return [&cluster, handler](const HttpRequest& request) { return handler(cluster, request); };
  };
  return {
      {"POST", "/v1/nodes", {}, with(join)},
      {"GET",
       "/v1/nodes",
       {},
       [&cluster](const HttpRequest&) {
         return HttpReply{200, encode(cluster.nodes())};
       }},
      {"GET", "/v1/nodes/{id}", {}, with(show_node)},
      {"DELETE", "/v1/nodes/{id}", {"force"}, with(remove_node)},
      {"PUT", "/v1/nodes/{id}/heartbeat", {}, with(heartbeat_node)},
      {"POST",
       "/v1/nodes/{id}/drain",
       {},
       [&cluster](const HttpRequest& request) {
         return reply_to(cluster.drain_node(NodeId{request.ids[0]}));
       }},
      {"POST", "/v1/nodes/{id}/rdma/endpoint", {}, with(exchange)},
      {"GET", "/v1/nodes/{id}/rdma/endpoint", {}, with(endpoints)},
  };
}

}  // namespace farpage::coordinator
