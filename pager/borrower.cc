#include "pager/borrower.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <map>

namespace farpage::pager {
namespace {

constexpr size_t kMaxSlabsPerRequest = 16;
constexpr Milliseconds kRetryLease{250};

}  // namespace

Borrower::Borrower(Core& core, coordinator::Client& client, std::vector<LinkPort*> ports,
                   const Doorbell& own_bell, const Doorbell& connector_bell,
                   std::function<coordinator::Counters()> counters)
    : core_(core),
      client_(client),
      ports_(std::move(ports)),
      own_bell_(own_bell),
      connector_bell_(connector_bell),
      counters_(std::move(counters)) {}

Borrower::~Borrower() {
  stop();
  if (region_.id.value.empty()) return;
  if (const Status deleted = client_.delete_region(region_.id); !deleted)
    spdlog::warn(
        "pager: region_not_deleted region={} reason=\"{}\" (the coordinator takes it back "
        "after its time to live)",
        region_.id.value, deleted.error().message());
}

Status Borrower::open_region(Milliseconds patience) {
  const Instant start = SteadyClock::read();
  while (true) {
    const bool last_try = SteadyClock::read() - start >= patience;
    Status opened{};
    if (region_.id.value.empty()) {
      Result<coordinator::RegionInfo> region =
          client_.create_region({.name = core_.options.name,
                                 .bytes = 0,
                                 .replicas = core_.options.replicas,
                                 .slab_bytes = core_.options.slab_bytes});
      if (region) {
        region_ = std::move(*region);
      } else {
        opened = tl::unexpected(std::move(region).error());
      }
    }
    if (opened) opened = lease({SlabIndex{0}});
    if (opened) return {};
    const bool may_change = opened.error().code == ErrorCode::kExhausted ||
                            opened.error().code == ErrorCode::kUnavailable;
    if (last_try || !may_change) return fail_with("borrowing memory", opened.error());
    std::this_thread::sleep_for(Milliseconds(100));
  }
}

void Borrower::start() {
  thread_ = std::jthread([this] { run(); });
}

void Borrower::stop() {
  own_bell_.ring();
  if (thread_.joinable()) thread_.join();
}

void Borrower::run() {
  (void)pthread_setname_np(pthread_self(), "fp-borrower");
  Instant next_heartbeat = SteadyClock::read();
  while (!core_.stopping.load(std::memory_order_acquire)) {
    const std::vector<SlabIndex> wanted = core_.leases.wanted(kMaxSlabsPerRequest);
    bool waiting_for_lease = false;
    if (!wanted.empty()) {
      const Status leased = lease(wanted);
      waiting_for_lease = !leased;
      if (!leased && !lease_refused_)
        spdlog::warn("pager: lease_refused slabs={} reason=\"{}\" (trying again)", wanted.size(),
                     leased.error().message());
      lease_refused_ = !leased;
    }
    const Instant now = SteadyClock::read();
    if (now >= next_heartbeat) {
      heartbeat();
      // Whoever is silent has no events either; asking would double the time that a lease, or the
      // end, waits for this thread.
      if (!coordinator_silent_) poll_events();
      next_heartbeat = now + region_.heartbeat_interval;
    }
    const auto until_heartbeat =
        std::chrono::duration_cast<Milliseconds>(next_heartbeat - SteadyClock::read());
    const Milliseconds pause = waiting_for_lease ? kRetryLease : until_heartbeat;
    (void)own_bell_.wait(std::max(pause, Milliseconds(1)));
  }
}

Status Borrower::lease(const std::vector<SlabIndex>& slabs) {
  FARPAGE_TRY(leases, client_.lease_slabs(region_.id, slabs));
  return adopt(leases);
}

Status Borrower::adopt(const std::vector<coordinator::Lease>& leases) {
  std::map<SlabIndex, std::unique_ptr<SlabLease>> slabs;
  for (const coordinator::Lease& lease : leases) {
    if (lease.slab.value >= core_.leases.slabs()) continue;
    if (lease.bytes != region_.slab_bytes)
      return fail(ErrorCode::kInvalid, "the coordinator leased a slab of another size");
    FARPAGE_TRY(node, node_index(lease.node));
    std::unique_ptr<SlabLease>& slab = slabs[lease.slab];
    if (!slab) slab = std::make_unique<SlabLease>();
    if (slab->replica_count == coordinator::kMaxReplicas)
      return fail(ErrorCode::kInvalid, "the coordinator leased too many replicas");
    ReplicaLease& replica = slab->replicas[slab->replica_count++];
    replica.node = node;
    replica.address = lease.address;
    replica.generation = lease.generation;
    replica.lost.store(lease.lost, std::memory_order_relaxed);
    for (const auto& [kind, key] : lease.rkeys) replica.keys[static_cast<size_t>(kind)] = key;
  }
  for (auto& [index, slab] : slabs) {
    core_.leases.publish(index, std::move(slab));
    leased_slabs_.fetch_add(1, std::memory_order_relaxed);
  }
  return {};
}

Result<NodeIndex> Borrower::node_index(const NodeId& id) {
  auto index = core_.nodes.find(id);
  if (!index) {
    FARPAGE_TRY_VOID(refresh_nodes());
    index = core_.nodes.find(id);
  }
  if (!index) return fail(ErrorCode::kNotFound, "the coordinator does not list node " + id.value);
  if (!std::exchange(requested_[index->value], true)) {
    for (LinkPort* port : ports_) port->request(*index);
    connector_bell_.ring();
  }
  return *index;
}

Status Borrower::refresh_nodes() {
  FARPAGE_TRY(nodes, client_.nodes());
  for (const coordinator::NodeInfo& node : nodes) {
    if (!core_.nodes.put(node))
      spdlog::warn("pager: too_many_nodes ignored={} limit={}", node.join.id.value, kMaxNodes);
  }
  return {};
}

void Borrower::heartbeat() {
  const Status beat = client_.heartbeat_region(region_.id, {.counters = counters_()});
  if (beat) {
    if (coordinator_silent_) spdlog::info("pager: coordinator_back region={}", region_.id.value);
    coordinator_silent_ = false;
    return;
  }
  if (!coordinator_silent_)
    spdlog::warn("pager: coordinator_silent reason=\"{}\" (paging goes on under {} leased slabs)",
                 beat.error().message(), leased_slabs());
  coordinator_silent_ = true;
  if (beat.error().code != ErrorCode::kNotFound) return;
  // A coordinator without our region: it lost its state. The slabs we hold stay ours at the nodes;
  // a new region is for those we still need.
  const Result<coordinator::RegionInfo> region =
      client_.create_region({.name = core_.options.name,
                             .bytes = 0,
                             .replicas = core_.options.replicas,
                             .slab_bytes = core_.options.slab_bytes});
  if (!region) return;
  spdlog::warn("pager: region_recreated old={} new={}", region_.id.value, region->id.value);
  region_ = *region;
}

void Borrower::poll_events() {
  const Result<coordinator::EventBatch> batch = client_.events(events_since_, Milliseconds(0));
  if (!batch) return;
  events_since_ = batch->next_since;
  bool relevant = batch->missed;
  for (const coordinator::Event& event : batch->events)
    relevant = relevant || event.kind == coordinator::EventKind::kNodeJoined ||
               event.kind == coordinator::EventKind::kNodeLeft ||
               event.kind == coordinator::EventKind::kLeaseLost;
  if (relevant) refresh_leases();
}

void Borrower::refresh_leases() {
  if (!refresh_nodes()) return;
  const Result<coordinator::RegionInfo> region = client_.region(region_.id);
  if (!region) return;
  for (const coordinator::Lease& lease : region->leases) {
    if (!lease.lost || lease.slab.value >= core_.leases.slabs()) continue;
    const PageIndex page{uint64_t{lease.slab.value} * core_.leases.pages_per_slab()};
    const SlabLease* held = core_.leases.find(page);
    const auto node = core_.nodes.find(lease.node);
    if (held == nullptr || !node) continue;
    for (uint32_t i = 0; i < held->replica_count; ++i) {
      const ReplicaLease& replica = held->replicas[i];
      if (replica.node == *node && replica.generation == lease.generation)
        core_.lose_replica(page, replica, "the coordinator says that the node lost its memory");
    }
  }
}

}  // namespace farpage::pager
