#include "coordinator/store_json.h"

#include <nlohmann/json.hpp>

#include "coordinator/api_json_parts.h"
#include "http/url.h"

namespace farpage::coordinator {
namespace {

using Json = nlohmann::json;

template <typename T, typename Read>
Result<T> decode_record(std::string_view text, Read read) {
  return decode_with<T>(text, http::UnknownFields::kIgnore, read);
}

uint32_t read_u32(http::JsonReader& reader, const char* key) {
  return static_cast<uint32_t>(reader.number(key, 0, http::kMaxU32));
}

}  // namespace

std::string encode(const NodeRecord& node) {
  Json json{{"join", json_of_node_join(node.join)}, {"service", static_cast<int>(node.service)}};
  if (node.lend_slabs) json["lend_slabs"] = *node.lend_slabs;
  return json.dump();
}

Result<NodeRecord> decode_node_record(std::string_view text) {
  return decode_record<NodeRecord>(text, [](http::JsonReader& reader, NodeRecord& node) {
    reader.object("join", [&](http::JsonReader& join) { read_node_join(join, node.join); });
    node.service =
        NodeService(reader.number("service", 0, static_cast<uint64_t>(NodeService::kCordoned)));
    if (reader.has("lend_slabs")) node.lend_slabs = read_u32(reader, "lend_slabs");
  });
}

std::string encode(const RegionRecord& region) {
  return Json{{"id", region.id.value},
              {"name", region.name},
              {"replicas", region.replicas},
              {"slab_bytes", region.slab_bytes},
              {"session_group", region.session_group},
              {"spread_by", region.spread_by},
              {"borrower", region.borrower}}
      .dump();
}

Result<RegionRecord> decode_region_record(std::string_view text) {
  return decode_record<RegionRecord>(text, [](http::JsonReader& reader, RegionRecord& region) {
    region.id = RegionId{reader.name("id")};
    region.name = reader.name("name");
    region.replicas = static_cast<uint32_t>(reader.number("replicas", 1, kMaxReplicas));
    read_slab_bytes(reader, region.slab_bytes);
    region.session_group = read_u32(reader, "session_group");
    region.spread_by = reader.text_or_empty("spread_by", http::kMaxNameBytes);
    region.borrower = reader.text_or_empty("borrower", http::kMaxNameBytes);
  });
}

std::string encode(const LeaseKey& key, const Lease& lease) {
  return Json{{"region", key.region.value}, {"lease", json_of_lease(lease, Secrets::kShow)}}.dump();
}

Result<std::pair<LeaseKey, Lease>> decode_lease_record(std::string_view text) {
  using Record = std::pair<LeaseKey, Lease>;
  return decode_record<Record>(text, [](http::JsonReader& reader, Record& record) {
    auto& [key, lease] = record;
    reader.object("lease", [&lease = lease](http::JsonReader& entry) { read_lease(entry, lease); });
    key = LeaseKey{RegionId{reader.name("region")}, lease.slab, number_of(lease)};
  });
}

std::string encode(const Revocation& revocation) {
  return Json{{"id", revocation.id},
              {"node", revocation.node.value},
              {"incarnation", revocation.incarnation},
              {"agent_url", revocation.agent_url},
              {"node_slab", revocation.node_slab},
              {"generation", revocation.generation.value},
              {"region", revocation.asked.region.value},
              {"slab", revocation.asked.slab.value},
              {"replica", revocation.asked.replica}}
      .dump();
}

Result<Revocation> decode_revocation(std::string_view text) {
  return decode_record<Revocation>(text, [](http::JsonReader& reader, Revocation& revocation) {
    revocation.id = reader.number("id", 1, http::kMaxU64);
    revocation.node = NodeId{reader.name("node")};
    revocation.incarnation = reader.number("incarnation", 0, http::kMaxU64);
    revocation.agent_url = reader.text("agent_url", http::kMaxUrlBytes);
    revocation.node_slab = read_u32(reader, "node_slab");
    revocation.generation = Generation{read_u32(reader, "generation")};
    revocation.asked.region = RegionId{reader.name("region")};
    read_slab(reader, revocation.asked.slab);
    revocation.asked.replica = read_u32(reader, "replica");
  });
}

std::string encode(const ImageRecord& image) {
  return Json{{"id", image.id.value},
              {"region", image.region.value},
              {"base", image.base.value},
              {"bytes", image.bytes},
              {"complete", image.state == ImageState::kComplete},
              {"upload", image.upload},
              {"pages", image.pages},
              {"digest", image.digest}}
      .dump();
}

Result<ImageRecord> decode_image_record(std::string_view text) {
  return decode_record<ImageRecord>(text, [](http::JsonReader& reader, ImageRecord& image) {
    image.id = ImageId{reader.name("id")};
    image.region = RegionId{reader.name("region")};
    image.base = ImageId{reader.text_or_empty("base", http::kMaxNameBytes)};
    image.bytes = reader.number("bytes", 0, kMaxImageBytes);
    image.state =
        reader.boolean_or("complete", false) ? ImageState::kComplete : ImageState::kUploading;
    image.upload = reader.number("upload", 0, http::kMaxU64);
    image.pages = reader.number("pages", 0, http::kMaxU64);
    image.digest = reader.text_or_empty("digest", kMaxDigestBytes);
  });
}

}  // namespace farpage::coordinator
