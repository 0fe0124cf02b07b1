#include <nlohmann/json.hpp>

#include "coordinator/api_json_parts.h"
#include "http/problem.h"

namespace farpage::coordinator {
namespace {

using Json = nlohmann::json;
using rdma::QueuePairEndpoint;

constexpr uint64_t kMaxU24 = (uint64_t{1} << 24) - 1;

void read_queue_pair_endpoint(http::JsonReader& reader, QueuePairEndpoint& endpoint) {
  endpoint.qpn = static_cast<uint32_t>(reader.number("qpn", 1, kMaxU24));
  endpoint.psn = static_cast<uint32_t>(reader.number("psn", 0, kMaxU24));
  endpoint.lid = static_cast<uint16_t>(reader.number("lid", 0, 65535));
  endpoint.gid = reader.text_or_empty("gid", http::kMaxNameBytes);
  endpoint.gid_index = static_cast<uint8_t>(reader.number_or("gid_index", 0, 255, 0));
  endpoint.is_global = reader.boolean_or("is_global", true);
  if (reader.ok() && endpoint.gid.empty() && endpoint.is_global)
    reader.refuse("gid", "is missing: a global route needs the port's GID");
  if (reader.ok() && !endpoint.gid.empty() && !rdma::is_gid(endpoint.gid))
    reader.refuse("gid", "is not a GID: write it like an IPv6 address, as in ::ffff:10.0.0.1");
  endpoint.mtu_bytes = static_cast<uint32_t>(reader.number("mtu_bytes", 256, 4096));
  if (reader.ok() && (endpoint.mtu_bytes & (endpoint.mtu_bytes - 1)) != 0)
    reader.refuse("mtu_bytes", "must be 256, 512, 1024, 2048 or 4096");
  endpoint.max_rd_atomic = static_cast<uint32_t>(reader.number_or("max_rd_atomic", 0, 255, 1));
  endpoint.max_dest_rd_atomic =
      static_cast<uint32_t>(reader.number_or("max_dest_rd_atomic", 0, 255, 1));
  endpoint.session = reader.number_or("session", 0, http::kMaxU64, 0);
}

Result<SlabLeaseReply> read_slab_lease_reply(http::JsonReader& entry) {
  if (entry.has("code")) {
    const std::string code = entry.text("code", http::kMaxNameBytes);
    return fail(http::error_code_from(code).value_or(ErrorCode::kIo),
                entry.text("detail", http::kMaxDetailBytes));
  }
  SlabLeaseReply reply;
  reply.address = RemoteAddress{entry.number("address", 0, http::kMaxU64)};
  reply.bytes = entry.number("bytes", kMinSlabBytes, kMaxSlabBytes);
  read_remote_keys(entry, reply.rkeys);
  read_generation(entry, reply.generation);
  return reply;
}

Json json_of(const Result<SlabLeaseReply>& reply) {
  if (!reply) return {{"code", to_string(reply.error().code)}, {"detail", reply.error().message()}};
  return {{"address", reply->address.value},
          {"bytes", reply->bytes},
          {"rkeys", json_of_keys(reply->rkeys)},
          {"generation", reply->generation.value}};
}

}  // namespace

Result<QueuePairEndpoint> decode_queue_pair_endpoint(std::string_view body) {
  return decode_with<QueuePairEndpoint>(body, http::UnknownFields::kRefuse,
                                        read_queue_pair_endpoint);
}

Result<QueuePairEndpoint> decode_queue_pair_reply(std::string_view body) {
  return decode_with<QueuePairEndpoint>(body, http::UnknownFields::kIgnore,
                                        read_queue_pair_endpoint);
}

Result<std::vector<NodeSlabRequest>> decode_slab_lease_requests(std::string_view body) {
  return decode_with<std::vector<NodeSlabRequest>>(
      body, http::UnknownFields::kRefuse,
      [](http::JsonReader& reader, std::vector<NodeSlabRequest>& requests) {
        reader.each("slabs", kMaxSlabsPerLease, [&](http::JsonReader& entry) {
          NodeSlabRequest& request = requests.emplace_back();
          request.node_slab =
              static_cast<uint32_t>(entry.number("node_slab", 0, kMaxSlabsPerNode - 1));
          request.lease.region = RegionId{entry.name("region")};
          read_slab(entry, request.lease.slab);
          request.lease.replica =
              static_cast<uint32_t>(entry.number("replica", 0, kFillingReplica + kMaxReplicas - 1));
          request.lease.session_group =
              static_cast<uint32_t>(entry.number_or("session_group", 0, http::kMaxU32, 0));
        });
      });
}

Result<SlabRevokeRequest> decode_slab_revoke_request(std::string_view body) {
  return decode_with<SlabRevokeRequest>(body, http::UnknownFields::kRefuse,
                                        [](http::JsonReader& reader, SlabRevokeRequest& request) {
                                          read_generation(reader, request.generation);
                                        });
}

Result<std::vector<uint32_t>> decode_node_slabs(std::string_view body) {
  return decode_with<std::vector<uint32_t>>(
      body, http::UnknownFields::kRefuse,
      [](http::JsonReader& reader, std::vector<uint32_t>& slabs) {
        read_node_slabs(reader, "slabs", slabs);
        if (reader.ok() && slabs.empty()) reader.refuse("slabs", "must name at least one slab");
      });
}

Result<std::vector<Result<SlabLeaseReply>>> decode_slab_lease_replies(std::string_view body,
                                                                      size_t requests) {
  using Replies = std::vector<Result<SlabLeaseReply>>;
  FARPAGE_TRY(replies,
              decode_with<Replies>(
                  body, http::UnknownFields::kIgnore, [](http::JsonReader& reader, Replies& list) {
                    reader.each("slabs", kMaxSlabsPerLease, [&](http::JsonReader& entry) {
                      list.push_back(read_slab_lease_reply(entry));
                    });
                  }));
  if (replies.size() != requests)
    return fail(ErrorCode::kInvalid, "field 'slabs': " + std::to_string(replies.size()) +
                                         " answers to " + std::to_string(requests) + " requests");
  return replies;
}

Result<uint64_t> decode_incarnation(std::string_view body) {
  return decode_with<uint64_t>(body, http::UnknownFields::kIgnore,
                               [](http::JsonReader& reader, uint64_t& incarnation) {
                                 incarnation = reader.number("incarnation", 1, http::kMaxU64);
                               });
}

// Omits the session: anyone who knows it can disconnect the peer, so no listing contains it.
Json json_of_endpoint(const QueuePairEndpoint& endpoint) {
  return Json{{"qpn", endpoint.qpn},
              {"psn", endpoint.psn},
              {"lid", endpoint.lid},
              {"gid", endpoint.gid},
              {"gid_index", endpoint.gid_index},
              {"is_global", endpoint.is_global},
              {"mtu_bytes", endpoint.mtu_bytes},
              {"max_rd_atomic", endpoint.max_rd_atomic},
              {"max_dest_rd_atomic", endpoint.max_dest_rd_atomic}};
}

std::string encode(const QueuePairEndpoint& endpoint) {
  Json json = json_of_endpoint(endpoint);
  if (endpoint.session != 0) json["session"] = endpoint.session;
  return json.dump();
}

std::string encode(std::span<const NodeSlabRequest> requests) {
  Json slabs = Json::array();
  for (const NodeSlabRequest& request : requests)
    slabs.push_back({{"node_slab", request.node_slab},
                     {"region", request.lease.region.value},
                     {"slab", request.lease.slab.value},
                     {"replica", request.lease.replica},
                     {"session_group", request.lease.session_group}});
  return Json{{"slabs", std::move(slabs)}}.dump();
}

std::string encode(const SlabRevokeRequest& request) {
  return Json{{"generation", request.generation.value}}.dump();
}

std::string encode_node_slabs(std::span<const uint32_t> node_slabs) {
  return Json{{"slabs", std::vector<uint32_t>(node_slabs.begin(), node_slabs.end())}}.dump();
}

std::string encode(const std::vector<Result<SlabLeaseReply>>& replies) {
  Json slabs = Json::array();
  for (const Result<SlabLeaseReply>& reply : replies) slabs.push_back(json_of(reply));
  // A detail may quote what a caller sent.
  return Json{{"slabs", std::move(slabs)}}.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace farpage::coordinator
