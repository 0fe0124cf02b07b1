#include "pager/succession.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "coordinator/api_json.h"
#include "pager/kept_values.h"
#include "rdma/session.h"

namespace farpage::pager {
namespace {

using nlohmann::json;

constexpr char kNumbers[] = "numbers";
constexpr char kGroup[] = "engine/session_group";
constexpr char kSessions[] = "session/";
constexpr char kNodes[] = "node/";
constexpr char kRegions[] = "region/";
constexpr char kTargets[] = "target/";

// A number that keeps its place in the order of names.
std::string ordered(uint64_t number) {
  std::string digits = std::to_string(number);
  return std::string(20 - digits.size(), '0') + digits;
}

Result<RegionRecord> region_from(const json& value) {
  RegionRecord region{.group = value.value("group", uint64_t{0}),
                      .id = BackingId{value.value("id", uint16_t{0})},
                      .pages = value.value("pages", uint64_t{0}),
                      .slab_bytes = value.value("slab_bytes", uint64_t{0}),
                      .name = value.value("name", ""),
                      .info = {}};
  if (value.contains("info")) {
    FARPAGE_TRY(info, coordinator::decode_region_info(value["info"].get<std::string>()));
    region.info = std::move(info);
  }
  return region;
}

Result<TargetRecord> target_from(const json& value) {
  return TargetRecord{.group = value.value("group", uint64_t{0}),
                      .table = value.value("table", uint64_t{0}),
                      .pages = value.value("pages", uint64_t{0}),
                      .regions = value.value("regions", std::vector<uint64_t>{}),
                      .own = value.value("own", std::vector<uint64_t>{}),
                      .forking = value.value("forking", false),
                      .snapshot = value.value("snapshot", uint64_t{0})};
}

}  // namespace

Result<Succession> Succession::create(StateStore* store, const std::string& part) {
  FARPAGE_TRY(numbers, store == nullptr ? Mapping::anonymous(kPageBytes)
                                        : store->memory(part + kNumbers, kPageBytes));
  return Succession(store, part, std::move(numbers));
}

Result<Mapping> Succession::memory(const std::string& name, size_t bytes) const {
  return store_ == nullptr ? Mapping::anonymous(bytes) : store_->memory(part_ + name, bytes);
}

std::vector<StateStore::Part> Succession::used_parts(const std::string& name) const {
  return store_ == nullptr ? std::vector<StateStore::Part>() : store_->used_parts(part_ + name);
}

void Succession::drop_memory(const std::string& name) const {
  if (store_ != nullptr) store_->drop_memory(part_ + name);
}

Result<uint32_t> Succession::session_group(uint32_t session_group) const {
  if (store_ == nullptr) return session_group;
  if (const auto kept = store_->get(part_ + kGroup))
    return static_cast<uint32_t>(std::stoul(*kept));
  FARPAGE_TRY_VOID(store_->put(part_ + kGroup, std::to_string(session_group)));
  return session_group;
}

Result<uint64_t> Succession::session(const std::string& port, uint32_t session_group) const {
  if (store_ == nullptr) return rdma::new_session(session_group);
  if (const auto kept = store_->get(part_ + kSessions + port)) return std::stoull(*kept);
  const uint64_t session = rdma::new_session(session_group);
  FARPAGE_TRY_VOID(store_->put(part_ + kSessions + port, std::to_string(session)));
  return session;
}

Status Succession::put_node(uint16_t index, const coordinator::NodeInfo& node) const {
  if (store_ == nullptr) return {};
  return store_->put(part_ + kNodes + ordered(index), coordinator::encode(node));
}

Result<std::vector<coordinator::NodeInfo>> Succession::nodes() const {
  std::vector<coordinator::NodeInfo> found;
  if (store_ == nullptr) return found;
  for (const auto& [name, text] : store_->all(part_ + kNodes)) {
    FARPAGE_TRY(node, coordinator::decode_node_info(text));
    found.push_back(std::move(node));
  }
  return found;
}

Status Succession::put_region(uint64_t number, const RegionRecord& region) const {
  if (store_ == nullptr) return {};
  json value = {{"group", region.group},
                {"id", region.id.value},
                {"pages", region.pages},
                {"slab_bytes", region.slab_bytes},
                {"name", region.name}};
  if (region.info) value["info"] = coordinator::encode(*region.info, coordinator::Secrets::kHide);
  return store_->put(part_ + kRegions + ordered(number), value.dump());
}

void Succession::erase_region(uint64_t number) const {
  if (store_ == nullptr) return;
  store_->erase(part_ + kRegions + ordered(number));
  drop_memory(leases_name(number));
  drop_memory(checksums_name(number));
}

Result<std::map<uint64_t, RegionRecord>> Succession::regions() const {
  return read_kept<RegionRecord>(store_, part_ + kRegions, region_from);
}

Status Succession::put_target(uint64_t number, const TargetRecord& target) const {
  if (store_ == nullptr) return {};
  return store_->put(part_ + kTargets + ordered(number), json{{"group", target.group},
                                                              {"table", target.table},
                                                              {"pages", target.pages},
                                                              {"regions", target.regions},
                                                              {"own", target.own},
                                                              {"forking", target.forking},
                                                              {"snapshot", target.snapshot}}
                                                             .dump());
}

void Succession::erase_target(uint64_t number) const {
  if (store_ != nullptr) store_->erase(part_ + kTargets + ordered(number));
}

Result<std::map<uint64_t, TargetRecord>> Succession::targets() const {
  return read_kept<TargetRecord>(store_, part_ + kTargets, target_from);
}

void TargetKeeper::begin(TargetRecord record) {
  const MutexLock lock(mutex_);
  record_ = std::move(record);
}

Status TargetKeeper::add_region(uint64_t region) {
  const MutexLock lock(mutex_);
  record_.regions.push_back(region);
  record_.own.push_back(region);
  return succession_.put_target(number_, record_);
}

Status TargetKeeper::begin_fork(uint64_t snapshot) {
  const MutexLock lock(mutex_);
  record_.forking = true;
  record_.snapshot = snapshot;
  return succession_.put_target(number_, record_);
}

Status TargetKeeper::end_fork() {
  const MutexLock lock(mutex_);
  record_.forking = false;
  record_.snapshot = 0;
  return succession_.put_target(number_, record_);
}

void TargetKeeper::end() {
  const MutexLock lock(mutex_);
  succession_.erase_target(number_);
  succession_.drop_memory(Succession::pins_name(number_));
}

}  // namespace farpage::pager
