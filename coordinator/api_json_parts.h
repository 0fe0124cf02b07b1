// Parts that several messages share. Private to coordinator/.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "coordinator/api.h"
#include "coordinator/api_json.h"
#include "http/json_reader.h"

namespace farpage::coordinator {

// Each reads the field of that name, and refuses it in the reader when it is wrong. Missing
// counters and keys are none, a missing slab size is kDefaultSlabBytes.
void read_counters(http::JsonReader& reader, Counters& counters);
void read_remote_keys(http::JsonReader& reader, RemoteKeys& keys);
void read_slab_bytes(http::JsonReader& reader, uint64_t& slab_bytes);
void read_slab(http::JsonReader& reader, SlabIndex& slab);
// A required array of numbers of a node's slabs, each once.
void read_node_slabs(http::JsonReader& reader, const char* key, std::vector<uint32_t>& slabs);
void read_generation(http::JsonReader& reader, Generation& generation);
void read_region_info(http::JsonReader& reader, RegionInfo& region);
void read_node_join(http::JsonReader& reader, NodeJoin& node);
nlohmann::json json_of_node_join(const NodeJoin& node);
void read_lease(http::JsonReader& reader, Lease& lease);
nlohmann::json json_of_lease(const Lease& lease, Secrets secrets);
nlohmann::json json_of_region(const RegionInfo& region, Secrets secrets);
// By the name of the transport. A secret: only for leases that show their keys, and for the store.
nlohmann::json json_of_keys(const RemoteKeys& keys);
// Without the session, which is a secret.
nlohmann::json json_of_endpoint(const rdma::QueuePairEndpoint& endpoint);

// Decodes one body: parses it, calls `read` for the fields, and reports the first error.
template <typename T, typename Read>
Result<T> decode_with(std::string_view body, http::UnknownFields unknown, Read read) {
  FARPAGE_TRY(document, http::parse_json_object(body));
  http::JsonReader reader(*document, unknown);
  T value{};
  read(reader, value);
  FARPAGE_TRY_VOID(reader.finish());
  return value;
}

}  // namespace farpage::coordinator
