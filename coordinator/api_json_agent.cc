#include <nlohmann/json.hpp>

#include "coordinator/api_json_parts.h"

namespace farpage::coordinator {
namespace {

using Json = nlohmann::json;
using rdma::QueuePairEndpoint;

constexpr uint64_t kMaxU24 = (uint64_t{1} << 24) - 1;

void read_queue_pair_endpoint(JsonReader& reader, QueuePairEndpoint& endpoint) {
  endpoint.qpn = static_cast<uint32_t>(reader.number("qpn", 1, kMaxU24));
  endpoint.psn = static_cast<uint32_t>(reader.number("psn", 0, kMaxU24));
  endpoint.lid = static_cast<uint16_t>(reader.number("lid", 0, 65535));
  endpoint.gid = reader.text_or_empty("gid", kMaxNameBytes);
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
  endpoint.session = reader.number_or("session", 0, kMaxU64, 0);
}

uint32_t read_generation(JsonReader& reader) {
  return static_cast<uint32_t>(reader.number("generation", 1, kMaxU32));
}

}  // namespace

Result<QueuePairEndpoint> decode_queue_pair_endpoint(std::string_view body) {
  return decode_with<QueuePairEndpoint>(body, UnknownFields::kRefuse, read_queue_pair_endpoint);
}

Result<QueuePairEndpoint> decode_queue_pair_reply(std::string_view body) {
  return decode_with<QueuePairEndpoint>(body, UnknownFields::kIgnore, read_queue_pair_endpoint);
}

Result<SlabLeaseRequest> decode_slab_lease_request(std::string_view body) {
  return decode_with<SlabLeaseRequest>(
      body, UnknownFields::kRefuse, [](JsonReader& reader, SlabLeaseRequest& request) {
        request.region = RegionId{reader.name("region")};
        request.slab =
            SlabIndex{static_cast<uint32_t>(reader.number("slab", 0, kMaxSlabsPerRegion - 1))};
        request.replica = static_cast<uint32_t>(reader.number("replica", 0, kMaxReplicas - 1));
        request.session_group =
            static_cast<uint32_t>(reader.number_or("session_group", 0, kMaxU32, 0));
      });
}

Result<SlabRevokeRequest> decode_slab_revoke_request(std::string_view body) {
  return decode_with<SlabRevokeRequest>(body, UnknownFields::kRefuse,
                                        [](JsonReader& reader, SlabRevokeRequest& request) {
                                          request.generation = Generation{read_generation(reader)};
                                        });
}

Result<SlabLeaseReply> decode_slab_lease_reply(std::string_view body) {
  return decode_with<SlabLeaseReply>(
      body, UnknownFields::kIgnore, [](JsonReader& reader, SlabLeaseReply& reply) {
        reply.address = RemoteAddress{reader.number("address", 0, kMaxU64)};
        reply.bytes = reader.number("bytes", kMinSlabBytes, kMaxSlabBytes);
        read_remote_keys(reader, reply.rkeys);
        reply.generation = Generation{read_generation(reader)};
      });
}

Result<uint64_t> decode_incarnation(std::string_view body) {
  return decode_with<uint64_t>(body, UnknownFields::kIgnore,
                               [](JsonReader& reader, uint64_t& incarnation) {
                                 incarnation = reader.number("incarnation", 1, kMaxU64);
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

std::string encode(const SlabLeaseRequest& request) {
  return Json{{"region", request.region.value},
              {"slab", request.slab.value},
              {"replica", request.replica},
              {"session_group", request.session_group}}
      .dump();
}

std::string encode(const SlabRevokeRequest& request) {
  return Json{{"generation", request.generation.value}}.dump();
}

std::string encode(const SlabLeaseReply& reply) {
  return Json{{"address", reply.address.value},
              {"bytes", reply.bytes},
              {"rkeys", json_of_keys(reply.rkeys)},
              {"generation", reply.generation.value}}
      .dump();
}

}  // namespace farpage::coordinator
