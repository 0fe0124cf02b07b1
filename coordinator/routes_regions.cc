#include "coordinator/api_json.h"
#include "coordinator/routes.h"

namespace farpage::coordinator {
namespace {

http::Reply create(Cluster& cluster, const http::Request& request) {
  const auto create = decode_region_create(request.body);
  if (!create) return http::problem_reply(create.error());
  const auto region = cluster.create_region(*create);
  if (!region) return http::problem_reply(region.error());
  http::Reply reply{201, encode(*region, Secrets::kShow)};
  reply.headers["Location"] = "/v1/regions/" + region->id.value;
  return reply;
}

// The only GET with rkeys: a restarted borrower resumes its region with it. Who reads an image
// opens it instead.
http::Reply show_region(Cluster& cluster, const http::Request& request) {
  const auto region = cluster.region(RegionId{request.ids[0]});
  if (!region) return http::problem_reply(region.error());
  return http::Reply{
      200, encode(*region, region->image.value.empty() ? Secrets::kShow : Secrets::kHide)};
}

http::Reply heartbeat_region(Cluster& cluster, const http::Request& request) {
  auto heartbeat = decode_region_heartbeat(request.body);
  if (!heartbeat) return http::problem_reply(heartbeat.error());
  const auto heard = cluster.heartbeat_region(RegionId{request.ids[0]}, std::move(*heartbeat));
  if (!heard) return http::problem_reply(heard.error());
  return http::Reply{200, encode(*heard)};
}

http::Reply lease(Cluster& cluster, const http::Request& request) {
  const auto slabs = decode_slab_list(request.body);
  if (!slabs) return http::problem_reply(slabs.error());
  const auto leases = cluster.lease_slabs(RegionId{request.ids[0]}, *slabs);
  if (!leases) return http::problem_reply(leases.error());
  return http::Reply{200, encode(*leases)};
}

http::Reply release(Cluster& cluster, const http::Request& request) {
  const auto slabs = decode_slab_list(request.body);
  if (!slabs) return http::problem_reply(slabs.error());
  return reply_to(cluster.release_slabs(RegionId{request.ids[0]}, *slabs));
}

http::Reply begin_repair(Cluster& cluster, const http::Request& request) {
  const auto repair = decode_repair_begin(request.body);
  if (!repair) return http::problem_reply(repair.error());
  const auto begun = cluster.begin_repair(RegionId{request.ids[0]}, *repair);
  if (!begun) return http::problem_reply(begun.error());
  return http::Reply{200, encode(*begun)};
}

http::Reply complete_repair(Cluster& cluster, const http::Request& request) {
  const auto repair = decode_repair_complete(request.body);
  if (!repair) return http::problem_reply(repair.error());
  return reply_to(cluster.complete_repair(RegionId{request.ids[0]}, *repair));
}

http::Reply remove_region(Cluster& cluster, const http::Request& request) {
  return reply_to(cluster.delete_region(RegionId{request.ids[0]}));
}

}  // namespace

std::vector<http::Route> region_routes(RouteContext& context) {
  return {
      {"POST", "/v1/regions", {}, context.with(create), http::Body::kJson},
      {"GET", "/v1/regions", {}, context.with([](Cluster& cluster, const http::Request&) {
         return http::Reply{200, encode(cluster.regions())};
       })},
      {"GET", "/v1/regions/{id}", {}, context.with(show_region)},
      {"DELETE", "/v1/regions/{id}", {}, context.with(remove_region)},
      {"PUT", "/v1/regions/{id}/heartbeat", {}, context.with(heartbeat_region), http::Body::kJson},
      {"POST", "/v1/regions/{id}/slabs", {}, context.with(lease), http::Body::kJson},
      {"POST", "/v1/regions/{id}/slabs/release", {}, context.with(release), http::Body::kJson},
      {"POST", "/v1/regions/{id}/repairs", {}, context.with(begin_repair), http::Body::kJson},
      {"POST",
       "/v1/regions/{id}/repairs/complete",
       {},
       context.with(complete_repair),
       http::Body::kJson},
  };
}

}  // namespace farpage::coordinator
