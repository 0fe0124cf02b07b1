#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "coordinator/api_json_parts.h"
#include "coordinator/counter_name.h"
#include "http/problem.h"
#include "http/url.h"

namespace farpage::coordinator {
namespace {

using Json = nlohmann::json;
using rdma::TransportAddress;

constexpr uint64_t kMaxCapacityBytes = uint64_t{1} << 50;

void read_transport(http::JsonReader& reader, TransportAddress& address) {
  const std::string kind = reader.text("kind", http::kMaxNameBytes);
  if (!reader.ok()) return;
  const auto known = rdma::transport_kind_from(kind);
  if (!known) return reader.refuse("kind", "must be verbs, shm, tcp or loop");
  address.kind = *known;
  address.text = reader.text("address", rdma::kMaxAddressBytes);
}

Json json_of(const TransportAddress& address) {
  return {{"kind", rdma::to_string(address.kind)}, {"address", address.text}};
}

void read_labels(http::JsonReader& reader, Labels& labels) {
  reader.each_text("labels", kMaxLabels, [&](const std::string& key, const std::string& value) {
    if (!http::is_name(key) || !http::is_name(value))
      return reader.refuse("labels", "keys and values must be names");
    labels.emplace(key, value);
  });
}

void read_node_info(http::JsonReader& reader, NodeInfo& node) {
  read_node_join(reader, node.join);
  const std::string state = reader.text("state", http::kMaxNameBytes);
  for (const NodeState known :
       {NodeState::kAlive, NodeState::kCordoned, NodeState::kDraining, NodeState::kLost})
    if (state == to_string(known)) node.state = known;
  if (reader.ok() && state != to_string(node.state))
    reader.refuse("state", "must be alive, cordoned, draining or lost");
  node.total_slabs = static_cast<uint32_t>(reader.number("total_slabs", 0, kMaxSlabsPerNode));
  node.free_slabs = static_cast<uint32_t>(reader.number("free_slabs", 0, kMaxSlabsPerNode));
  node.last_heartbeat_age = Milliseconds(
      static_cast<int64_t>(reader.number("last_heartbeat_age_ms", 0, http::kMaxU64 >> 24)));
  if (reader.has("lend_bytes")) node.lend_bytes = reader.number("lend_bytes", 1, kMaxCapacityBytes);
  node.lend_refused = reader.text_or_empty("lend_refused", http::kMaxDetailBytes);
  read_counters(reader, node.counters);
}

Json json_of(const NodeInfo& node) {
  Json json = json_of_node_join(node.join);
  json.update({{"state", to_string(node.state)},
               {"total_slabs", node.total_slabs},
               {"free_slabs", node.free_slabs},
               {"last_heartbeat_age_ms", node.last_heartbeat_age.count()},
               {"counters", node.counters}});
  if (node.lend_bytes) json["lend_bytes"] = *node.lend_bytes;
  if (!node.lend_refused.empty()) json["lend_refused"] = node.lend_refused;
  return json;
}

}  // namespace

void read_node_join(http::JsonReader& reader, NodeJoin& node) {
  node.id = NodeId{reader.name("id")};
  node.incarnation = reader.number("incarnation", 1, http::kMaxU64);
  node.agent_url = reader.text("agent_url", http::kMaxUrlBytes);
  if (reader.ok() && !http::parse_url(node.agent_url))
    reader.refuse("agent_url", "must be http://host:port without a path");
  read_slab_bytes(reader, node.slab_bytes);
  node.capacity_bytes = reader.number("capacity_bytes", 1, kMaxCapacityBytes);
  if (reader.ok() && node.capacity_bytes < node.slab_bytes)
    reader.refuse("capacity_bytes", fmt::format("is less than one slab of {} bytes: lend more or "
                                                "use smaller slabs",
                                                node.slab_bytes));
  if (reader.has("withdrawn")) read_node_slabs(reader, "withdrawn", node.withdrawn);
  read_labels(reader, node.labels);
  if (reader.has("identity")) {
    node.identity = reader.text("identity", kIdentityDigits);
    if (reader.ok() && !is_identity(node.identity))
      reader.refuse("identity",
                    fmt::format("must be {} lower-case hexadecimal digits", kIdentityDigits));
  }
  node.spill = reader.boolean_or("spill", false);
  const uint64_t numbers =
      reader.ok() ? node.capacity_bytes / node.slab_bytes + node.withdrawn.size() : 0;
  if (reader.ok() &&
      std::ranges::any_of(node.withdrawn, [&](auto slab) { return slab >= numbers; }))
    reader.refuse("withdrawn", fmt::format("names a slab beyond the last one, {}", numbers - 1));
  if (reader.ok() && numbers > kMaxSlabsPerNode)
    reader.refuse("capacity_bytes",
                  fmt::format("has more than {} slabs: use larger slabs", kMaxSlabsPerNode));
  node.version = reader.text_or_empty("version", http::kMaxNameBytes);
  reader.each("transports", kMaxTransports, [&](http::JsonReader& entry) {
    read_transport(entry, node.transports.emplace_back());
  });
  if (reader.ok() && node.transports.empty())
    reader.refuse("transports", "must name at least one way to reach the node's memory");
}

Json json_of_node_join(const NodeJoin& node) {
  Json transports = Json::array();
  for (const TransportAddress& address : node.transports) transports.push_back(json_of(address));
  Json json{{"id", node.id.value},
            {"incarnation", node.incarnation},
            {"agent_url", node.agent_url},
            {"capacity_bytes", node.capacity_bytes},
            {"slab_bytes", node.slab_bytes},
            {"version", node.version},
            {"transports", std::move(transports)}};
  if (!node.withdrawn.empty()) json["withdrawn"] = node.withdrawn;
  if (!node.labels.empty()) json["labels"] = node.labels;
  if (!node.identity.empty()) json["identity"] = node.identity;
  if (node.spill) json["spill"] = true;
  return json;
}

bool is_identity(std::string_view text) {
  return text.size() == kIdentityDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string_view to_string(NodeState state) {
  switch (state) {
    case NodeState::kAlive:
      return "alive";
    case NodeState::kCordoned:
      return "cordoned";
    case NodeState::kDraining:
      return "draining";
    case NodeState::kLost:
      return "lost";
  }
  return "unknown";
}

void read_counters(http::JsonReader& reader, Counters& counters) {
  reader.each_entry(
      "counters", kMaxCounters, http::kMaxU64, [&](const std::string& name, uint64_t value) {
        if (name.size() > kMaxCounterBytes)
          return reader.refuse("counters",
                               fmt::format("one name has more than {} bytes", kMaxCounterBytes));
        const Status checked = check_counter_name(name);
        if (!checked) return reader.refuse("counters", checked.error().context);
        counters.emplace_hint(counters.end(), name, value);
      });
  for (const auto& [name, value] : counters)
    if (!name.starts_with(kCounterPrefix) &&
        counters.contains(std::string(kCounterPrefix).append(name)))
      return reader.refuse("counters", "the same counter is given with and without farpage_");
}

void read_slab_bytes(http::JsonReader& reader, uint64_t& slab_bytes) {
  slab_bytes = reader.number_or("slab_bytes", kMinSlabBytes, kMaxSlabBytes, kDefaultSlabBytes);
  if (reader.ok() && (slab_bytes & (slab_bytes - 1)) != 0)
    reader.refuse("slab_bytes", "must be a power of two");
}

void read_node_slabs(http::JsonReader& reader, const char* key, std::vector<uint32_t>& slabs) {
  std::set<uint64_t> seen;
  reader.each_number(key, kMaxSlabsPerNode, kMaxSlabsPerNode - 1, [&](uint64_t slab) {
    if (!seen.insert(slab).second) return reader.refuse(key, fmt::format("names {} twice", slab));
    slabs.push_back(static_cast<uint32_t>(slab));
  });
}

Result<NodeJoin> decode_node_join(std::string_view body) {
  return decode_with<NodeJoin>(body, http::UnknownFields::kRefuse, read_node_join);
}

Result<NodeHeartbeat> decode_node_heartbeat(std::string_view body) {
  return decode_with<NodeHeartbeat>(
      body, http::UnknownFields::kRefuse, [](http::JsonReader& reader, NodeHeartbeat& heartbeat) {
        heartbeat.incarnation = reader.number("incarnation", 1, http::kMaxU64);
        heartbeat.free_slabs =
            static_cast<uint32_t>(reader.number("free_slabs", 0, kMaxSlabsPerNode));
        read_counters(reader, heartbeat.counters);
        if (!reader.has("session_groups")) return;
        reader.each_number("session_groups", kMaxSessionGroups, http::kMaxU32, [&](uint64_t group) {
          heartbeat.session_groups.push_back(static_cast<uint32_t>(group));
        });
      });
}

Result<NodeLend> decode_node_lend(std::string_view body) {
  return decode_with<NodeLend>(body, http::UnknownFields::kRefuse,
                               [](http::JsonReader& reader, NodeLend& lend) {
                                 lend.bytes = reader.number("bytes", 1, kMaxCapacityBytes);
                               });
}

Result<Rebalance> decode_rebalance(std::string_view body) {
  return decode_with<Rebalance>(
      body, http::UnknownFields::kRefuse, [](http::JsonReader& reader, Rebalance& rebalance) {
        rebalance.within_percent = static_cast<uint32_t>(
            reader.number_or("within_percent", 1, 50, rebalance.within_percent));
        rebalance.at_most =
            static_cast<uint32_t>(reader.number_or("at_most", 1, 4096, rebalance.at_most));
      });
}

Result<Rebalanced> decode_rebalanced(std::string_view body) {
  return decode_with<Rebalanced>(
      body, http::UnknownFields::kIgnore, [](http::JsonReader& reader, Rebalanced& done) {
        done.moving = static_cast<uint32_t>(reader.number("moving", 0, http::kMaxU32));
        done.left = static_cast<uint32_t>(reader.number("left", 0, http::kMaxU32));
        done.lowest_percent = static_cast<uint32_t>(reader.number("lowest_percent", 0, 100));
        done.highest_percent = static_cast<uint32_t>(reader.number("highest_percent", 0, 100));
      });
}

Result<NodeInfo> decode_node_info(std::string_view body) {
  return decode_with<NodeInfo>(body, http::UnknownFields::kIgnore, read_node_info);
}

Result<std::vector<NodeInfo>> decode_node_list(std::string_view body) {
  return decode_with<std::vector<NodeInfo>>(
      body, http::UnknownFields::kIgnore,
      [](http::JsonReader& reader, std::vector<NodeInfo>& nodes) {
        reader.each("nodes", std::numeric_limits<size_t>::max(),
                    [&](http::JsonReader& entry) { read_node_info(entry, nodes.emplace_back()); });
      });
}

std::string encode(const NodeJoin& node) {
  return json_of_node_join(node).dump();
}

std::string encode(const NodeHeartbeat& heartbeat) {
  return Json{{"incarnation", heartbeat.incarnation},
              {"free_slabs", heartbeat.free_slabs},
              {"counters", heartbeat.counters},
              {"session_groups", heartbeat.session_groups}}
      .dump();
}

std::string encode(const NodeLend& lend) {
  return Json{{"bytes", lend.bytes}}.dump();
}

std::string encode(const Rebalance& rebalance) {
  return Json{{"within_percent", rebalance.within_percent}, {"at_most", rebalance.at_most}}.dump();
}

std::string encode(const Rebalanced& done) {
  return Json{{"moving", done.moving},
              {"left", done.left},
              {"lowest_percent", done.lowest_percent},
              {"highest_percent", done.highest_percent}}
      .dump();
}

std::string encode(const NodeInfo& node) {
  return json_of(node).dump();
}

std::string encode(const std::vector<NodeInfo>& nodes) {
  Json list = Json::array();
  for (const NodeInfo& node : nodes) list.push_back(json_of(node));
  return Json{{"nodes", std::move(list)}}.dump();
}

std::string encode(const NodeEndpoints& endpoints) {
  Json transports = Json::array();
  for (const TransportAddress& address : endpoints.transports)
    transports.push_back(json_of(address));
  Json exchanged = Json::array();
  for (const QueuePairExchanged& pair : endpoints.exchanged)
    exchanged.push_back(
        {{"peer", json_of_endpoint(pair.peer)}, {"node", json_of_endpoint(pair.node)}});
  return Json{{"id", endpoints.id.value},
              {"incarnation", endpoints.incarnation},
              {"transports", std::move(transports)},
              {"exchanged", std::move(exchanged)}}
      .dump();
}

}  // namespace farpage::coordinator
