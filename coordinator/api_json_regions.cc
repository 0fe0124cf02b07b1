#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "coordinator/api_json_parts.h"

namespace farpage::coordinator {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxMilliseconds = uint64_t{1} << 40;
constexpr size_t kNoLimit = std::numeric_limits<size_t>::max();

void read_replica_name(http::JsonReader& reader, ReplicaName& name) {
  name.node = NodeId{reader.name("node")};
  read_generation(reader, name.generation);
}

Json json_of(const ReplicaName& name) {
  return {{"node", name.node.value}, {"generation", name.generation.value}};
}

Json json_of(const std::vector<Lease>& leases, Secrets secrets) {
  Json list = Json::array();
  for (const Lease& lease : leases) list.push_back(json_of_lease(lease, secrets));
  return list;
}

void read_replicas(http::JsonReader& reader, uint32_t& replicas) {
  replicas = static_cast<uint32_t>(reader.number_or("replicas", 1, kMaxReplicas, 1));
}

constexpr EventKind kEventKinds[] = {
    EventKind::kNodeJoined,    EventKind::kNodeCordoned,  EventKind::kNodeDraining,
    EventKind::kNodeOpened,    EventKind::kNodeLost,      EventKind::kNodeLeft,
    EventKind::kRegionCreated, EventKind::kRegionDeleted, EventKind::kLeaseLost,
    EventKind::kRepairBegun,   EventKind::kSlabRepaired,  EventKind::kSlabMoving};

bool names_slab(EventKind kind) {
  return kind == EventKind::kLeaseLost || kind == EventKind::kRepairBegun ||
         kind == EventKind::kSlabRepaired || kind == EventKind::kSlabMoving;
}

void read_event(http::JsonReader& reader, EventBatch& batch) {
  Event event;
  event.sequence = reader.number("sequence", 1, http::kMaxU64);
  event.node = NodeId{reader.text_or_empty("node", http::kMaxNameBytes)};
  event.region = RegionId{reader.text_or_empty("region", http::kMaxNameBytes)};
  event.slab =
      SlabIndex{static_cast<uint32_t>(reader.number_or("slab", 0, kMaxSlabsPerRegion - 1, 0))};
  const std::string kind = reader.text("kind", http::kMaxNameBytes);
  for (const EventKind known : kEventKinds) {
    if (kind != to_string(known)) continue;
    event.kind = known;
    batch.events.push_back(event);
    return;
  }
  // A kind from a newer coordinator, which this client cannot handle.
}

Json json_of(const Event& event) {
  Json json{{"sequence", event.sequence}, {"kind", to_string(event.kind)}};
  if (!event.node.value.empty()) json["node"] = event.node.value;
  if (!event.region.value.empty()) json["region"] = event.region.value;
  if (names_slab(event.kind)) json["slab"] = event.slab.value;
  return json;
}

}  // namespace

void read_lease(http::JsonReader& reader, Lease& lease) {
  read_slab(reader, lease.slab);
  lease.replica = static_cast<uint32_t>(reader.number("replica", 0, kMaxReplicas - 1));
  lease.node = NodeId{reader.name("node")};
  lease.node_slab = static_cast<uint32_t>(reader.number("node_slab", 0, kMaxSlabsPerNode - 1));
  lease.address = RemoteAddress{reader.number("address", 0, http::kMaxU64)};
  lease.bytes = reader.number("bytes", kMinSlabBytes, kMaxSlabBytes);
  read_remote_keys(reader, lease.rkeys);
  read_generation(reader, lease.generation);
  lease.lost = reader.boolean_or("lost", false);
  lease.stale = reader.boolean_or("stale", false);
  lease.filling = reader.boolean_or("filling", false);
  lease.moving = reader.boolean_or("moving", false);
}

Json json_of_lease(const Lease& lease, Secrets secrets) {
  Json json{{"slab", lease.slab.value},
            {"replica", lease.replica},
            {"node", lease.node.value},
            {"node_slab", lease.node_slab},
            {"address", lease.address.value},
            {"bytes", lease.bytes},
            {"generation", lease.generation.value},
            {"lost", lease.lost},
            {"stale", lease.stale},
            {"filling", lease.filling},
            {"moving", lease.moving}};
  if (secrets == Secrets::kShow) json["rkeys"] = json_of_keys(lease.rkeys);
  return json;
}

void read_slab(http::JsonReader& reader, SlabIndex& slab) {
  slab = SlabIndex{static_cast<uint32_t>(reader.number("slab", 0, kMaxSlabsPerRegion - 1))};
}

void read_generation(http::JsonReader& reader, Generation& generation) {
  generation = Generation{static_cast<uint32_t>(reader.number("generation", 1, http::kMaxU32))};
}

void read_region_info(http::JsonReader& reader, RegionInfo& region) {
  region.id = RegionId{reader.name("id")};
  region.name = reader.name("name");
  read_replicas(reader, region.replicas);
  read_slab_bytes(reader, region.slab_bytes);
  region.heartbeat_interval = Milliseconds(
      static_cast<int64_t>(reader.number("heartbeat_interval_ms", 1, kMaxMilliseconds)));
  region.time_to_live =
      Milliseconds(static_cast<int64_t>(reader.number("time_to_live_ms", 1, kMaxMilliseconds)));
  reader.each("leases", kNoLimit,
              [&](http::JsonReader& entry) { read_lease(entry, region.leases.emplace_back()); });
  read_counters(reader, region.counters);
  region.image = ImageId{reader.text_or_empty("image", http::kMaxNameBytes)};
  region.spread_by = reader.text_or_empty("spread_by", http::kMaxNameBytes);
  region.borrower = reader.text_or_empty("borrower", http::kMaxNameBytes);
}

Json json_of_region(const RegionInfo& region, Secrets secrets) {
  Json json{{"id", region.id.value},
            {"name", region.name},
            {"replicas", region.replicas},
            {"slab_bytes", region.slab_bytes},
            {"heartbeat_interval_ms", region.heartbeat_interval.count()},
            {"time_to_live_ms", region.time_to_live.count()},
            {"leases", json_of(region.leases, secrets)},
            {"counters", region.counters}};
  if (!region.image.value.empty()) json["image"] = region.image.value;
  if (!region.spread_by.empty()) json["spread_by"] = region.spread_by;
  if (!region.borrower.empty()) json["borrower"] = region.borrower;
  return json;
}

std::string_view to_string(EventKind kind) {
  switch (kind) {
    case EventKind::kNodeJoined:
      return "node_joined";
    case EventKind::kNodeCordoned:
      return "node_cordoned";
    case EventKind::kNodeOpened:
      return "node_opened";
    case EventKind::kNodeDraining:
      return "node_draining";
    case EventKind::kNodeLost:
      return "node_lost";
    case EventKind::kNodeLeft:
      return "node_left";
    case EventKind::kRegionCreated:
      return "region_created";
    case EventKind::kRegionDeleted:
      return "region_deleted";
    case EventKind::kLeaseLost:
      return "lease_lost";
    case EventKind::kRepairBegun:
      return "repair_begun";
    case EventKind::kSlabRepaired:
      return "slab_repaired";
    case EventKind::kSlabMoving:
      return "slab_moving";
  }
  return "unknown";
}

void read_remote_keys(http::JsonReader& reader, RemoteKeys& keys) {
  reader.each_text("rkeys", kMaxTransports, [&](const std::string& name, const std::string& text) {
    const auto kind = rdma::transport_kind_from(name);
    if (!kind) return reader.refuse("rkeys", "holds a transport other than verbs, shm, tcp, loop");
    const auto key = rdma::remote_key_from(text);
    if (!key)
      return reader.refuse("rkeys",
                           "must hold 40 lower-case hexadecimal digits for each transport");
    keys.emplace(*kind, *key);
  });
}

Json json_of_keys(const RemoteKeys& keys) {
  Json json = Json::object();
  for (const auto& [kind, key] : keys)
    json[std::string(rdma::to_string(kind))] = rdma::to_text(key);
  return json;
}

Result<RemoteKeys> decode_remote_keys(std::string_view body) {
  return decode_with<RemoteKeys>(body, http::UnknownFields::kRefuse, read_remote_keys);
}

std::string encode(const RemoteKeys& keys) {
  return Json{{"rkeys", json_of_keys(keys)}}.dump();
}

Result<RegionCreate> decode_region_create(std::string_view body) {
  return decode_with<RegionCreate>(
      body, http::UnknownFields::kRefuse, [](http::JsonReader& reader, RegionCreate& region) {
        region.name = reader.name("name");
        read_slab_bytes(reader, region.slab_bytes);
        region.bytes = reader.number_or("bytes", 0, kMaxSlabsPerRegion * region.slab_bytes, 0);
        read_replicas(reader, region.replicas);
        region.session_group =
            static_cast<uint32_t>(reader.number_or("session_group", 0, http::kMaxU32, 0));
        if (reader.has("spread_by")) region.spread_by = reader.name("spread_by");
        if (reader.has("borrower")) region.borrower = reader.name("borrower");
      });
}

Result<RegionHeartbeat> decode_region_heartbeat(std::string_view body) {
  return decode_with<RegionHeartbeat>(body, http::UnknownFields::kRefuse,
                                      [](http::JsonReader& reader, RegionHeartbeat& heartbeat) {
                                        read_counters(reader, heartbeat.counters);
                                      });
}

Result<std::vector<SlabIndex>> decode_slab_list(std::string_view body) {
  return decode_with<std::vector<SlabIndex>>(
      body, http::UnknownFields::kRefuse,
      [](http::JsonReader& reader, std::vector<SlabIndex>& slabs) {
        std::set<uint64_t> seen;
        reader.each_number("slabs", kMaxSlabsPerRegion, kMaxSlabsPerRegion - 1, [&](uint64_t slab) {
          if (!seen.insert(slab).second)
            return reader.refuse("slabs", fmt::format("names slab {} twice", slab));
          slabs.push_back(SlabIndex{static_cast<uint32_t>(slab)});
        });
        if (reader.ok() && slabs.empty()) reader.refuse("slabs", "must name at least one slab");
      });
}

Result<RepairBegin> decode_repair_begin(std::string_view body) {
  return decode_with<RepairBegin>(
      body, http::UnknownFields::kRefuse, [](http::JsonReader& reader, RepairBegin& repair) {
        read_slab(reader, repair.slab);
        reader.each("live", kMaxReplicas, [&](http::JsonReader& entry) {
          read_replica_name(entry, repair.live.emplace_back());
        });
        if (reader.ok() && repair.live.empty())
          reader.refuse("live",
                        "must name at least one replica: without one there is nothing to copy");
        reader.each("avoid", kMaxNodes, [&](http::JsonReader& entry) {
          repair.avoid.push_back(NodeId{entry.name("node")});
        });
      });
}

Result<RepairComplete> decode_repair_complete(std::string_view body) {
  return decode_with<RepairComplete>(body, http::UnknownFields::kRefuse,
                                     [](http::JsonReader& reader, RepairComplete& repair) {
                                       read_slab(reader, repair.slab);
                                       read_replica_name(reader, repair.filled);
                                       repair.abandoned = reader.boolean_or("abandoned", false);
                                     });
}

Result<RepairBegun> decode_repair_begun(std::string_view body) {
  return decode_with<RepairBegun>(
      body, http::UnknownFields::kIgnore, [](http::JsonReader& reader, RepairBegun& begun) {
        reader.object("filling",
                      [&](http::JsonReader& entry) { read_lease(entry, begun.filling); });
        reader.object("replaces",
                      [&](http::JsonReader& entry) { read_replica_name(entry, begun.replaces); });
      });
}

Result<RegionInfo> decode_region_info(std::string_view body) {
  return decode_with<RegionInfo>(body, http::UnknownFields::kIgnore, read_region_info);
}

Result<std::vector<RegionInfo>> decode_region_list(std::string_view body) {
  return decode_with<std::vector<RegionInfo>>(
      body, http::UnknownFields::kIgnore,
      [](http::JsonReader& reader, std::vector<RegionInfo>& regions) {
        reader.each("regions", kNoLimit, [&](http::JsonReader& entry) {
          read_region_info(entry, regions.emplace_back());
        });
      });
}

Result<std::vector<Lease>> decode_lease_list(std::string_view body) {
  return decode_with<std::vector<Lease>>(
      body, http::UnknownFields::kIgnore, [](http::JsonReader& reader, std::vector<Lease>& leases) {
        reader.each("leases", kNoLimit,
                    [&](http::JsonReader& entry) { read_lease(entry, leases.emplace_back()); });
      });
}

Result<RegionHeard> decode_region_heard(std::string_view body) {
  return decode_with<RegionHeard>(
      body, http::UnknownFields::kIgnore, [](http::JsonReader& reader, RegionHeard& heard) {
        heard.last_event = reader.number("last_event", 0, http::kMaxU64);
      });
}

Result<EventBatch> decode_event_batch(std::string_view body) {
  return decode_with<EventBatch>(
      body, http::UnknownFields::kIgnore, [](http::JsonReader& reader, EventBatch& batch) {
        reader.each("events", kNoLimit, [&](http::JsonReader& entry) { read_event(entry, batch); });
        batch.next_since = reader.number("next_since", 0, http::kMaxU64);
        batch.missed = reader.boolean_or("missed", false);
      });
}

std::string encode(const RegionCreate& region) {
  Json json{{"name", region.name},
            {"bytes", region.bytes},
            {"replicas", region.replicas},
            {"slab_bytes", region.slab_bytes},
            {"session_group", region.session_group}};
  if (!region.spread_by.empty()) json["spread_by"] = region.spread_by;
  if (!region.borrower.empty()) json["borrower"] = region.borrower;
  return json.dump();
}

std::string encode(const RegionHeartbeat& heartbeat) {
  return Json{{"counters", heartbeat.counters}}.dump();
}

std::string encode(const std::vector<SlabIndex>& slabs) {
  Json list = Json::array();
  for (const SlabIndex slab : slabs) list.push_back(slab.value);
  return Json{{"slabs", std::move(list)}}.dump();
}

std::string encode(const RepairBegin& repair) {
  Json live = Json::array();
  for (const ReplicaName& name : repair.live) live.push_back(json_of(name));
  Json avoid = Json::array();
  for (const NodeId& node : repair.avoid) avoid.push_back({{"node", node.value}});
  return Json{{"slab", repair.slab.value}, {"live", std::move(live)}, {"avoid", std::move(avoid)}}
      .dump();
}

std::string encode(const RepairComplete& repair) {
  Json json = json_of(repair.filled);
  json["slab"] = repair.slab.value;
  json["abandoned"] = repair.abandoned;
  return json.dump();
}

std::string encode(const RepairBegun& begun) {
  return Json{{"filling", json_of_lease(begun.filling, Secrets::kShow)},
              {"replaces", json_of(begun.replaces)}}
      .dump();
}

std::string encode(const RegionInfo& region, Secrets secrets) {
  return json_of_region(region, secrets).dump();
}

std::string encode(const std::vector<RegionInfo>& regions) {
  Json list = Json::array();
  for (const RegionInfo& region : regions) list.push_back(json_of_region(region, Secrets::kHide));
  return Json{{"regions", std::move(list)}}.dump();
}

std::string encode(const std::vector<Lease>& leases) {
  return Json{{"leases", json_of(leases, Secrets::kShow)}}.dump();
}

std::string encode(const RegionHeard& heard) {
  return Json{{"last_event", heard.last_event}}.dump();
}

std::string encode(const EventBatch& batch) {
  Json list = Json::array();
  for (const Event& event : batch.events) list.push_back(json_of(event));
  return Json{
      {"events", std::move(list)}, {"next_since", batch.next_since}, {"missed", batch.missed}}
      .dump();
}

}  // namespace farpage::coordinator
