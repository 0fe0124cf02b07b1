#include "rig.h"

#include <gtest/gtest.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>

#include "base/host.h"
#include "rdma/shm/shm.h"
#include "rdma/tcp/tcp.h"
#include "uffd/own_process.h"

namespace farpage::pager {

namespace coord = farpage::coordinator;

TestNode::TestNode(std::string name, rdma::TransportKind kind,
                   std::shared_ptr<rdma::LoopNetwork> loop)
    : name_(std::move(name)), kind_(kind), loop_(std::move(loop)) {
  start();
}

void TestNode::start() {
  incarnation_ = random_u64();
  if (kind_ == rdma::TransportKind::kTcp) {
    auto host = rdma::make_tcp_memory_host({});
    ASSERT_TRUE(host.has_value()) << host.error().message();
    host_ = std::move(*host);
  } else if (kind_ == rdma::TransportKind::kShm) {
    std::string path = "/tmp/farpage-test-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    auto host = rdma::make_shm_memory_host({.socket_path = path + "/node"});
    ASSERT_TRUE(host.has_value()) << host.error().message();
    host_ = std::move(*host);
  } else {
    auto host = rdma::make_loop_memory_host(loop_, name_);
    ASSERT_TRUE(host.has_value()) << host.error().message();
    host_ = std::move(*host);
  }
}

coord::NodeInfo TestNode::info() const {
  const std::lock_guard lock(mutex_);
  coord::NodeInfo info;
  info.join.id = NodeId{name_};
  info.join.incarnation = incarnation_;
  info.join.slab_bytes = kTestSlabBytes;
  if (host_) info.join.transports.push_back(host_->address());
  return info;
}

Result<coord::Lease> TestNode::lease(SlabIndex slab, uint32_t replica) {
  const std::lock_guard lock(mutex_);
  if (!host_) return fail(ErrorCode::kUnavailable, name_ + " is dead");
  auto fd = create_memfd("farpage-test-slab", kTestSlabBytes);
  EXPECT_TRUE(fd.has_value());
  auto memory = Mapping::shared(fd->get(), kTestSlabBytes);
  EXPECT_TRUE(memory.has_value());
  const Generation generation{++generation_};
  const auto key = host_->expose({memory->bytes(), fd->get()}, generation, 0);
  EXPECT_TRUE(key.has_value()) << key.error().message();
  coord::Lease lease;
  lease.slab = slab;
  lease.replica = replica;
  lease.node = NodeId{name_};
  lease.address = RemoteAddress{reinterpret_cast<uint64_t>(memory->data())};
  lease.bytes = kTestSlabBytes;
  lease.rkeys[host_->address().kind] = *key;
  lease.generation = generation;
  slabs_.emplace_back(std::move(*fd), std::move(*memory));
  keys_.emplace_back(slab, *key);
  return lease;
}

void TestNode::kill() {
  const std::lock_guard lock(mutex_);
  die();
}

void TestNode::die() {
  host_.reset();
  slabs_.clear();
  keys_.clear();
  if (!directory_.empty()) std::filesystem::remove_all(directory_);
}

void TestNode::restart() {
  const std::lock_guard lock(mutex_);
  die();
  start();
}

void TestNode::revoke_all() {
  const std::lock_guard lock(mutex_);
  for (const auto& [slab, key] : keys_) host_->withdraw(key);
  keys_.clear();
}

void TestNode::revoke(SlabIndex slab) {
  const std::lock_guard lock(mutex_);
  for (const auto& [lent, key] : keys_)
    if (lent == slab) host_->withdraw(key);
  std::erase_if(keys_, [slab](const auto& entry) { return entry.first == slab; });
}

Status TestClient::check_up() const {
  if (down_) return fail(ErrorCode::kUnavailable, "the coordinator is down");
  if (silence_ == Milliseconds(0)) return {};
  std::this_thread::sleep_for(silence_);
  return fail(ErrorCode::kUnavailable, "the coordinator does not answer");
}

void TestClient::set_silent(Milliseconds each_call_takes) {
  const std::lock_guard lock(mutex_);
  silence_ = each_call_takes;
}

int TestClient::leases_without_answer() const {
  const std::lock_guard lock(mutex_);
  return leases_without_answer_;
}

void TestClient::set_down(bool down) {
  const std::lock_guard lock(mutex_);
  down_ = down;
}

Status TestClient::check_whole() {
  FARPAGE_TRY_VOID(check_up());
  if (broken_calls_ == 0) return {};
  --broken_calls_;
  return fail(ErrorCode::kTimedOut, "the coordinator broke off");
}

void TestClient::break_off(int calls) {
  const std::lock_guard lock(mutex_);
  broken_calls_ = calls;
}

void TestClient::set_slab_limit(size_t slabs) {
  const std::lock_guard lock(mutex_);
  slab_limit_ = slabs;
}

Result<coord::NodeInfo> TestClient::join(const coord::NodeJoin&) {
  return fail(ErrorCode::kUnsupported, "not a node");
}
Status TestClient::heartbeat_node(const NodeId&, const coord::NodeHeartbeat&) {
  return fail(ErrorCode::kUnsupported, "not a node");
}
Status TestClient::remove_node(const NodeId&, bool) {
  return fail(ErrorCode::kUnsupported, "not a node");
}
Status TestClient::drain_node(const NodeId&) {
  return fail(ErrorCode::kUnsupported, "not a node");
}
Status TestClient::cordon_node(const NodeId&) {
  return fail(ErrorCode::kUnsupported, "not a node");
}
Status TestClient::uncordon_node(const NodeId&) {
  return fail(ErrorCode::kUnsupported, "not a node");
}

Result<coord::RegionInfo> TestClient::create_region(const coord::RegionCreate& region) {
  const std::lock_guard lock(mutex_);
  FARPAGE_TRY_VOID(check_whole());
  region_.id = RegionId{"r" + std::to_string(++region_count_)};
  region_.replicas = region.replicas;
  region_.slab_bytes = region.slab_bytes;
  region_.heartbeat_interval = Milliseconds(50);
  return region_;
}

Result<coord::RegionInfo> TestClient::region(const RegionId& region) {
  const std::lock_guard lock(mutex_);
  FARPAGE_TRY_VOID(check_up());
  coord::RegionInfo info = region_;
  info.id = region;
  for (const auto& [place, leases] : leases_)
    if (place.first == region.value)
      info.leases.insert(info.leases.end(), leases.begin(), leases.end());
  return info;
}

Result<std::vector<coord::Lease>> TestClient::lease_slabs(const RegionId& region,
                                                          const std::vector<SlabIndex>& slabs) {
  const std::lock_guard lock(mutex_);
  if (silence_ > Milliseconds(0)) ++leases_without_answer_;
  FARPAGE_TRY_VOID(check_whole());
  std::vector<coord::Lease> result;
  for (const SlabIndex slab : slabs) {
    const std::pair place(region.value, slab.value);
    if (!leases_.contains(place)) {
      if (leases_.size() >= slab_limit_) return fail(ErrorCode::kExhausted, "no free slab");
      std::vector<coord::Lease> made;
      for (uint32_t replica = 0; replica < region_.replicas; ++replica) {
        TestNode& node = *nodes_[(slab.value + replica) % nodes_.size()];
        FARPAGE_TRY(lease, node.lease(slab, replica));
        made.push_back(std::move(lease));
      }
      leases_.emplace(place, std::move(made));
    }
    const auto& known = leases_[place];
    result.insert(result.end(), known.begin(), known.end());
  }
  return result;
}

Status TestClient::release_slabs(const RegionId& region, const std::vector<SlabIndex>& slabs) {
  const std::lock_guard lock(mutex_);
  FARPAGE_TRY_VOID(check_up());
  ++releases_;
  for (const SlabIndex slab : slabs) leases_.erase({region.value, slab.value});
  return {};
}

int TestClient::releases() const {
  const std::lock_guard lock(mutex_);
  return releases_;
}
Result<coord::RepairBegun> TestClient::begin_repair(const RegionId&, const coord::RepairBegin&) {
  return fail(ErrorCode::kExhausted, "no free slab");
}
Status TestClient::complete_repair(const RegionId&, const coord::RepairComplete&) {
  return fail(ErrorCode::kNotFound, "nothing is filling");
}
Result<coord::RegionHeard> TestClient::heartbeat_region(const RegionId&,
                                                        const coord::RegionHeartbeat&) {
  const std::lock_guard lock(mutex_);
  FARPAGE_TRY_VOID(check_up());
  return coord::RegionHeard();
}
Status TestClient::delete_region(const RegionId&) {
  return {};
}
Result<rdma::QueuePairEndpoint> TestClient::exchange(const NodeId&,
                                                     const rdma::QueuePairEndpoint&) {
  return fail(ErrorCode::kUnsupported, "no verbs here");
}

Result<std::vector<coord::NodeInfo>> TestClient::nodes() {
  const std::lock_guard lock(mutex_);
  FARPAGE_TRY_VOID(check_up());
  std::vector<coord::NodeInfo> infos;
  for (const auto& node : nodes_) infos.push_back(node->info());
  return infos;
}

Result<coord::NodeInfo> TestClient::node(const NodeId& id) {
  FARPAGE_TRY(all, nodes());
  for (const coord::NodeInfo& info : all)
    if (info.join.id == id) return info;
  return fail(ErrorCode::kNotFound, "no node " + id.value);
}

Result<std::vector<coord::RegionInfo>> TestClient::regions() {
  return std::vector<coord::RegionInfo>();
}
Result<coord::EventBatch> TestClient::events(uint64_t since, Milliseconds) {
  return coord::EventBatch{.events = {}, .next_since = since, .missed = false};
}
Result<std::string> TestClient::get(const std::string&) {
  return fail(ErrorCode::kUnsupported, "no REST here");
}

Rig::Rig(const RigOptions& options)
    : options_(options), loop_(rdma::make_loop_network(options.loop)) {
  for (uint32_t i = 0; i < options.nodes; ++i)
    nodes_.push_back(
        std::make_unique<TestNode>("n" + std::to_string(i + 1), options.transport, loop_));
  client_ = std::make_unique<TestClient>(nodes_);
  if (options.transport == rdma::TransportKind::kTcp) {
    transports_.push_back(rdma::make_tcp_transport());
  } else if (options.transport == rdma::TransportKind::kShm) {
    transports_.push_back(rdma::make_shm_transport());
  } else {
    transports_.push_back(rdma::make_loop_transport(loop_));
  }
  auto space = options.resolve_in_thread ? uffd::create_own_sigbus_window(options.pages)
                                         : uffd::create_own_window(options.pages);
  EXPECT_TRUE(space.has_value()) << space.error().message();
  base_ = (*space)->address_of(PageIndex{0});
  if (options.wrap_space) *space = options.wrap_space(std::move(*space));
  PagerOptions pager_options;
  pager_options.resolve_in_thread = options.resolve_in_thread;
  pager_options.adaptive_water_marks = options.adaptive_water_marks;
  pager_options.local_bytes = options.local_pages * kPageBytes;
  pager_options.replicas = options.replicas;
  pager_options.slab_bytes = kTestSlabBytes;
  pager_options.workers = options.workers;
  pager_options.pin_workers = false;
  pager_options.prefetch_depth = options.prefetch_depth;
  pager_options.channel.operations_in_flight = options.operations_in_flight;
  pager_options.fault_deadline = options.fault_deadline;
  pager_options.fork = options.fork;
  pager_options.channel.operation_timeout = options.operation_timeout;
  pager_options.on_full = options.on_full;
  client_->break_off(options.broken_calls);
  client_->set_slab_limit(options.slab_limit);
  if (options.spill_slabs > 0) {
    auto file = rdma::OpenFile::make({.folder = ".",
                                      .bytes = options.spill_slabs * kTestSlabBytes,
                                      .slab_bytes = kTestSlabBytes});
    EXPECT_TRUE(file.has_value()) << file.error().message();
    if (!file) return;
    file_ = std::move(*file);
    transports_.push_back(file_->transport());
  }
  auto engine = Engine::create(pager_options, *client_, transports_, nullptr, file_.get());
  EXPECT_TRUE(engine.has_value()) << engine.error().message();
  if (!engine) return;
  engine_ = std::move(*engine);
  auto pager = engine_->add({"first", pager_options.local_bytes, options.fork}, std::move(*space),
                            Seconds(5), {});
  EXPECT_TRUE(pager.has_value()) << pager.error().message();
  if (pager) pager_ = std::move(*pager);
}

Rig::Another Rig::add(uint64_t pages, uint64_t local_pages) {
  Another another;
  auto space = uffd::create_own_window(pages);
  EXPECT_TRUE(space.has_value()) << space.error().message();
  another.base = (*space)->address_of(PageIndex{0});
  auto pager = engine_->add({"another", local_pages * kPageBytes, ForkMode::kRefuse},
                            std::move(*space), Seconds(5), {});
  EXPECT_TRUE(pager.has_value()) << pager.error().message();
  if (pager) another.pager = std::move(*pager);
  return another;
}

Rig::~Rig() {
  pager_.reset();
  for (auto& node : nodes_) node->kill();
}

namespace {
thread_local sigjmp_buf escape;
thread_local uint64_t sigbus_address = 0;

void on_sigbus(int, siginfo_t* info, void*) {
  sigbus_address = reinterpret_cast<uint64_t>(info->si_addr);
  siglongjmp(escape, 1);
}
}  // namespace

bool ends_in_sigbus(volatile uint64_t* word, const std::function<void()>& touch) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, &before);
  volatile bool failed = true;
  if (sigsetjmp(escape, 1) == 0) {
    touch();
    failed = false;
  }
  ::sigaction(SIGBUS, &before, nullptr);
  const uint64_t page_mask = ~uint64_t{kPageBytes - 1};
  return failed && (sigbus_address & page_mask) == (reinterpret_cast<uint64_t>(word) & page_mask);
}

}  // namespace farpage::pager
