#include "coordinator/api_json.h"
#include "coordinator/routes.h"

namespace farpage::coordinator {
namespace {

HttpReply create(Cluster& cluster, const HttpRequest& request) {
  const auto create = decode_region_create(request.body);
  if (!create) return problem_reply(create.error());
  const auto region = cluster.create_region(*create);
  if (!region) return problem_reply(region.error());
  HttpReply reply{201, encode(*region, Secrets::kShow)};
  reply.headers["Location"] = "/v1/regions/" + region->id.value;
  return reply;
}

// The only GET with rkeys: a restarted borrower resumes its region with it.
HttpReply show_region(Cluster& cluster, const HttpRequest& request) {
  const auto region = cluster.region(RegionId{request.ids[0]});
  if (!region) return problem_reply(region.error());
  return HttpReply{200, encode(*region, Secrets::kShow)};
}

HttpReply heartbeat_region(Cluster& cluster, const HttpRequest& request) {
  const auto heartbeat = decode_region_heartbeat(request.body);
  if (!heartbeat) return problem_reply(heartbeat.error());
  const auto heard = cluster.heartbeat_region(RegionId{request.ids[0]}, *heartbeat);
  if (!heard) return problem_reply(heard.error());
  return HttpReply{200, encode(*heard)};
}

HttpReply lease(Cluster& cluster, const HttpRequest& request) {
  const auto slabs = decode_slab_list(request.body);
  if (!slabs) return problem_reply(slabs.error());
  const auto leases = cluster.lease_slabs(RegionId{request.ids[0]}, *slabs);
  if (!leases) return problem_reply(leases.error());
  return HttpReply{200, encode(*leases)};
}

HttpReply release(Cluster& cluster, const HttpRequest& request) {
  const auto slabs = decode_slab_list(request.body);
  if (!slabs) return problem_reply(slabs.error());
  return reply_to(cluster.release_slabs(RegionId{request.ids[0]}, *slabs));
}

HttpReply remove_region(Cluster& cluster, const HttpRequest& request) {
  return reply_to(cluster.delete_region(RegionId{request.ids[0]}));
}

}  // namespace

std::vector<Route> region_routes(RouteContext& context) {
  Cluster& cluster = context.cluster;
  const auto with = [&cluster](HttpReply (*handler)(Cluster&, const HttpRequest&)) {
    return [&cluster, handler](const HttpRequest& request) { return handler(cluster, request); };
  };
  return {
      {"POST", "/v1/regions", {}, with(create)},
      {"GET",
       "/v1/regions",
       {},
       [&cluster](const HttpRequest&) {
         return HttpReply{200, encode(cluster.regions())};
       }},
      {"GET", "/v1/regions/{id}", {}, with(show_region)},
      {"DELETE", "/v1/regions/{id}", {}, with(remove_region)},
      {"PUT", "/v1/regions/{id}/heartbeat", {}, with(heartbeat_region)},
      {"POST", "/v1/regions/{id}/slabs", {}, with(lease)},
      {"POST", "/v1/regions/{id}/slabs/release", {}, with(release)},
  };
}

}  // namespace farpage::coordinator
