#include "simulated_cluster.h"

#include <algorithm>
#include <set>

#include "simulated_channel.h"

namespace farpage::simulation {

// ---- a node ----

void SimulatedNode::kill() {
  advance();
  alive_ = false;
  flights_.clear();
  scheduler_.note({.what = "dies:", .text = name_});
}

void SimulatedNode::restart() {
  lent_.clear();
  for (auto& [session, number] : channels_) ++number;
  alive_ = true;
  scheduler_.note({.what = "restarts:", .text = name_});
}

void SimulatedNode::corrupt() {
  advance();
  uint64_t stored = 0;
  for (const auto& [number, slab] : lent_) stored += slab.pages.size();
  if (stored == 0) return;
  uint64_t left = scheduler_.choose(stored);
  for (auto& [number, slab] : lent_) {
    if (left >= slab.pages.size()) {
      left -= slab.pages.size();
      continue;
    }
    auto& [offset, page] = *std::next(slab.pages.begin(), static_cast<ptrdiff_t>(left));
    page[scheduler_.choose(kPageBytes)] ^= std::byte{1} << scheduler_.choose(8);
    scheduler_.note({.what = "a bit changes at slab",
                     .page = offset / kPageBytes,
                     .value = number,
                     .text = name_});
    return;
  }
}

coordinator::Lease SimulatedNode::lend() {
  uint32_t slab = 0;
  while (lent_.contains(slab)) ++slab;
  lent_[slab].generation = Generation{++last_generation_};
  coordinator::Lease lease;
  lease.node = NodeId{name_};
  lease.node_slab = slab;
  lease.address = RemoteAddress{(uint64_t{slab} + 1) * kSlabBytes};
  lease.bytes = kSlabBytes;
  lease.rkeys[rdma::TransportKind::kShm] = RemoteKey{.value = 1};
  lease.generation = Generation{last_generation_};
  return lease;
}

bool SimulatedNode::lends(uint32_t slab, Generation generation) const {
  const auto lent = lent_.find(slab);
  return lent != lent_.end() && lent->second.generation == generation;
}

bool SimulatedNode::is_fenced(uint64_t session, uint64_t channel) const {
  return session != 0 && channels_.at(session) != channel;
}

void SimulatedNode::advance() {
  const Instant now = scheduler_.now();
  if (!alive_) return;
  // While it is silent, what is due waits.
  if (now < silent_until_) return;
  while (true) {
    Flight* next = nullptr;
    Instant at{now + Nanoseconds(1)};
    for (const auto& flight : flights_) {
      const Instant due = flight->effective ? flight->again : flight->effect;
      if (due >= at) continue;
      at = due;
      next = flight.get();
    }
    if (next == nullptr) return;
    take_effect(*next);
    if (next->effective && next->again.count() != 0) {
      next->again = Instant{0};
    } else {
      next->effective = true;
    }
    std::erase_if(flights_, [](const auto& flight) {
      return flight->effective && flight->again.count() == 0;
    });
  }
}

void SimulatedNode::outlive_sender() {
  constexpr Milliseconds kLongest{60};
  for (const auto& flight : flights_) {
    if (flight->effective || scheduler_.chance(2)) continue;
    flight->effect = scheduler_.now() + scheduler_.choose_time(kLongest);
    flight->answer = Instant(INT64_MAX);
  }
}

void SimulatedNode::take_effect(Flight& flight) {
  const rdma::Operation& operation = flight.operation;
  const bool is_write = operation.kind == rdma::OperationKind::kWrite;
  if (is_fenced(flight.session, flight.channel)) {
    flight.answer = Instant(INT64_MAX);
    return;
  }
  if (flight.abandoned && (!is_write || flight.sent.empty())) return;
  const auto slab = static_cast<uint32_t>(operation.remote.value / kSlabBytes - 1);
  if (!lends(slab, operation.generation)) {
    flight.result = rdma::CompletionStatus::kRemoteAccess;
    return;
  }
  std::map<uint64_t, Page>& pages = lent_[slab].pages;
  for (size_t done = 0; done < operation.local.size(); done += kPageBytes) {
    const uint64_t offset = (operation.remote.value + done) % kSlabBytes;
    const std::span<std::byte> local = operation.local.subspan(done, kPageBytes);
    scheduler_.note(
        {.what = is_write ? "a WRITE takes effect at slab" : "a READ takes effect at slab",
         .page = offset / kPageBytes,
         .value = slab,
         .text = name_});
    if (is_write) {
      const std::span<const std::byte> bytes =
          flight.sent.empty() ? std::span<const std::byte>(local)
                              : std::span<const std::byte>(flight.sent).subspan(done, kPageBytes);
      std::ranges::copy(bytes, pages[offset].begin());
    } else if (const auto page = pages.find(offset); page != pages.end()) {
      std::ranges::copy(page->second, local.begin());
    } else {
      std::ranges::fill(local, std::byte{0});
    }
  }
}

// ---- the cluster ----

SimulatedCluster::SimulatedCluster(Scheduler& scheduler, size_t nodes, Weather weather)
    : scheduler_(scheduler), weather_(weather) {
  for (size_t i = 0; i < nodes; ++i)
    nodes_.push_back(std::make_unique<SimulatedNode>(scheduler, "node-" + std::to_string(i)));
}

std::vector<std::unique_ptr<rdma::Transport>> SimulatedCluster::transports() {
  std::vector<std::unique_ptr<rdma::Transport>> transports;
  transports.push_back(make_transport(scheduler_, nodes_, weather_));
  return transports;
}

void SimulatedCluster::restart(size_t node) {
  SimulatedNode& restarted = *nodes_[node];
  restarted.restart();
  const NodeId name{restarted.name()};
  for (auto& [id, region] : regions_) {
    for (coordinator::Lease& lease : region.leases) {
      if (lease.node != name || lease.lost) continue;
      lease.lost = true;
      tell({.kind = coordinator::EventKind::kLeaseLost,
            .node = name,
            .region = id,
            .slab = lease.slab});
    }
  }
  tell({.kind = coordinator::EventKind::kNodeJoined, .node = name});
}

bool SimulatedCluster::is_whole() const {
  for (const auto& [id, region] : regions_)
    for (const coordinator::Lease& lease : region.leases)
      if (lease.lost || lease.stale || lease.filling) return false;
  return true;
}

void SimulatedCluster::forget() {
  scheduler_.note({.what = "the coordinator forgets; regions:", .value = regions_.size()});
  regions_.clear();
  events_before_ += events_.size() + 1;
  events_.clear();
}

void SimulatedCluster::tell(coordinator::Event event) {
  event.sequence = events_before_ + events_.size() + 1;
  events_.push_back(std::move(event));
}

Status SimulatedCluster::request() {
  scheduler_.sleep(scheduler_.choose_time(std::chrono::microseconds(300)));
  if (answering_) return {};
  return fail(ErrorCode::kUnavailable, "the coordinator does not answer");
}

SimulatedNode& SimulatedCluster::node_named(const NodeId& name) {
  return **std::ranges::find(nodes_, name.value, &SimulatedNode::name);
}

Result<coordinator::RegionInfo> SimulatedCluster::create_region(
    const coordinator::RegionCreate& create) {
  FARPAGE_TRY_VOID(request());
  coordinator::RegionInfo region;
  region.id = RegionId{"region-" + std::to_string(++regions_made_)};
  region.name = create.name;
  region.replicas = create.replicas;
  region.slab_bytes = create.slab_bytes;
  region.heartbeat_interval = heartbeat_interval_;
  return regions_[region.id] = region;
}

Result<coordinator::RegionInfo> SimulatedCluster::region(const RegionId& id) {
  FARPAGE_TRY_VOID(request());
  const auto region = regions_.find(id);
  if (region == regions_.end()) return fail(ErrorCode::kNotFound, "no such region");
  return region->second;
}

Status SimulatedCluster::lend(coordinator::RegionInfo& region, SlabIndex slab) {
  const auto alive = std::ranges::count_if(nodes_, [](const auto& node) { return node->alive(); });
  if (static_cast<size_t>(alive) < region.replicas)
    return fail(ErrorCode::kExhausted, "too few nodes");
  const size_t first = scheduler_.choose(nodes_.size());
  uint32_t replica = 0;
  for (size_t i = 0; replica < region.replicas; ++i) {
    SimulatedNode& node = *nodes_[(first + i) % nodes_.size()];
    if (!node.alive()) continue;
    coordinator::Lease lease = node.lend();
    lease.slab = slab;
    lease.replica = replica++;
    region.leases.push_back(std::move(lease));
  }
  return {};
}

Result<std::vector<coordinator::Lease>> SimulatedCluster::lease_slabs(
    const RegionId& id, const std::vector<SlabIndex>& slabs) {
  FARPAGE_TRY_VOID(request());
  const auto region = regions_.find(id);
  if (region == regions_.end()) return fail(ErrorCode::kNotFound, "no such region");
  std::vector<coordinator::Lease> answer;
  for (const SlabIndex slab : slabs) {
    const auto held = [&](const coordinator::Lease& lease) { return lease.slab == slab; };
    if (std::ranges::none_of(region->second.leases, held)) {
      FARPAGE_TRY_VOID(lend(region->second, slab));
    }
    std::ranges::copy_if(region->second.leases, std::back_inserter(answer), held);
  }
  // The answer may be lost.
  FARPAGE_TRY_VOID(request());
  return answer;
}

void SimulatedCluster::end(const coordinator::Lease& lease) {
  SimulatedNode& node = node_named(lease.node);
  if (node.lends(lease.node_slab, lease.generation)) node.take_back(lease.node_slab);
}

Result<coordinator::RepairBegun> SimulatedCluster::begin_repair(
    const RegionId& id, const coordinator::RepairBegin& repair) {
  FARPAGE_TRY_VOID(request());
  const auto region = regions_.find(id);
  if (region == regions_.end()) return fail(ErrorCode::kNotFound, "no such region");
  std::vector<coordinator::Lease>& leases = region->second.leases;
  std::erase_if(leases, [&](const coordinator::Lease& lease) {
    const bool ends = lease.slab == repair.slab && lease.filling;
    if (ends) end(lease);
    return ends;
  });
  coordinator::Lease* replaced = nullptr;
  std::set<NodeId> taken(repair.avoid.begin(), repair.avoid.end());
  for (coordinator::Lease& lease : leases) {
    if (lease.slab != repair.slab) continue;
    const bool live = std::ranges::find(repair.live, name_of(lease)) != repair.live.end();
    lease.stale = lease.stale || !live;
    if (lease.lost || lease.stale) replaced = &lease;
    if (!lease.lost && !lease.stale) taken.insert(lease.node);
  }
  if (replaced == nullptr) return fail(ErrorCode::kConflict, "it has all its replicas");
  const size_t first = scheduler_.choose(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    SimulatedNode& node = *nodes_[(first + i) % nodes_.size()];
    if (!node.alive() || taken.contains(NodeId{node.name()})) continue;
    coordinator::Lease lease = node.lend();
    lease.slab = repair.slab;
    lease.replica = replaced->replica;
    lease.filling = true;
    const coordinator::RepairBegun begun{lease, name_of(*replaced)};
    leases.push_back(std::move(lease));
    // The answer may be lost.
    FARPAGE_TRY_VOID(request());
    return begun;
  }
  return fail(ErrorCode::kExhausted, "too few nodes");
}

Status SimulatedCluster::complete_repair(const RegionId& id,
                                         const coordinator::RepairComplete& repair) {
  FARPAGE_TRY_VOID(request());
  const auto region = regions_.find(id);
  if (region == regions_.end()) return fail(ErrorCode::kNotFound, "no such region");
  std::vector<coordinator::Lease>& leases = region->second.leases;
  const auto filled = std::ranges::find_if(leases, [&](const coordinator::Lease& lease) {
    return lease.slab == repair.slab && name_of(lease) == repair.filled;
  });
  if (repair.abandoned) {
    if (filled == leases.end() || !filled->filling) return {};
    end(*filled);
    leases.erase(filled);
    return request();
  }
  if (filled == leases.end() || filled->lost) return fail(ErrorCode::kNotFound, "not filling");
  if (!filled->filling) return {};
  filled->filling = false;
  const coordinator::Lease now = *filled;
  ++repaired_;
  std::erase_if(leases, [&](const coordinator::Lease& lease) {
    const bool ends =
        lease.slab == now.slab && lease.replica == now.replica && name_of(lease) != name_of(now);
    if (ends) end(lease);
    return ends;
  });
  return request();
}

Result<coordinator::RegionHeard> SimulatedCluster::heartbeat_region(
    const RegionId& region, const coordinator::RegionHeartbeat&) {
  FARPAGE_TRY_VOID(request());
  if (!regions_.contains(region)) return fail(ErrorCode::kNotFound, "no such region");
  return coordinator::RegionHeard{events_before_ + events_.size()};
}

Status SimulatedCluster::delete_region(const RegionId& id) {
  FARPAGE_TRY_VOID(request());
  const auto region = regions_.find(id);
  if (region == regions_.end()) return fail(ErrorCode::kNotFound, "no such region");
  for (const coordinator::Lease& lease : region->second.leases) end(lease);
  regions_.erase(region);
  return {};
}

Result<coordinator::NodeInfo> SimulatedCluster::node(const NodeId& id) {
  FARPAGE_TRY_VOID(request());
  const auto node = std::ranges::find(nodes_, id.value, &SimulatedNode::name);
  if (node == nodes_.end()) return fail(ErrorCode::kNotFound, "no such node");
  coordinator::NodeInfo info;
  info.join.id = id;
  info.join.incarnation = 1;
  info.join.agent_url = "http://127.0.0.1:1";
  info.join.capacity_bytes = kSlabBytes;
  info.join.slab_bytes = kSlabBytes;
  info.join.version = "simulated";
  rdma::TransportAddress address;
  address.kind = rdma::TransportKind::kShm;
  address.text = std::to_string(node - nodes_.begin());
  info.join.transports.push_back(address);
  return info;
}

Result<coordinator::EventBatch> SimulatedCluster::events(uint64_t since, Milliseconds) {
  FARPAGE_TRY_VOID(request());
  coordinator::EventBatch batch;
  batch.next_since = events_before_ + events_.size();
  batch.missed = since < events_before_;
  for (const coordinator::Event& event : events_)
    if (event.sequence > since) batch.events.push_back(event);
  return batch;
}

}  // namespace farpage::simulation
