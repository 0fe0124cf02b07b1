// TargetRig: one target of an engine without threads, on a FakeAddressSpace and FakeNodes. A test
// adds the one class that it is about.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "coordinator/client.h"
#include "fake_node.h"
#include "fake_space.h"
#include "pager/evict/eviction_batch.h"
#include "pager/fault/fault_worker.h"
#include "pager/links/link_port.h"
#include "pager/target.h"

namespace farpage::pager {

// How long a test waits for another thread before it fails.
template <typename Condition>
bool becomes_true(Condition condition) {
  const Instant start = SteadyClock::read();
  while (!condition()) {
    if (SteadyClock::read() - start > Seconds(60)) return false;
    std::this_thread::yield();
  }
  return true;
}

// Nothing is kept for a successor.
inline const Succession& no_succession() {
  static const Succession none = std::move(*Succession::create(nullptr));
  return none;
}

// Leases every slab on all nodes, at the address that FakeNode expects.
class FakeClient final : public coordinator::Client {
 public:
  FakeClient(std::vector<std::string> nodes, uint64_t slab_bytes)
      : nodes_(std::move(nodes)), slab_bytes_(slab_bytes) {}

  // No slab from this one on is leased.
  void set_slab_limit(uint32_t slabs) { slab_limit_ = slabs; }

  Result<coordinator::NodeInfo> join(const coordinator::NodeJoin&) override { return no_call(); }
  Status heartbeat_node(const NodeId&, const coordinator::NodeHeartbeat&) override {
    return no_call();
  }
  Status remove_node(const NodeId&, bool) override { return no_call(); }
  Status drain_node(const NodeId&) override { return no_call(); }
  Status cordon_node(const NodeId&) override { return no_call(); }
  Status uncordon_node(const NodeId&) override { return no_call(); }
  Result<coordinator::RegionInfo> create_region(const coordinator::RegionCreate& create) override;
  Result<coordinator::RegionInfo> region(const RegionId&) override { return no_call(); }
  Result<std::vector<coordinator::Lease>> lease_slabs(const RegionId&,
                                                      const std::vector<SlabIndex>& slabs) override;
  Status release_slabs(const RegionId&, const std::vector<SlabIndex>&) override { return {}; }
  Result<coordinator::RepairBegun> begin_repair(const RegionId&,
                                                const coordinator::RepairBegin&) override {
    return no_call();
  }
  Status complete_repair(const RegionId&, const coordinator::RepairComplete&) override {
    return no_call();
  }
  Result<coordinator::RegionHeard> heartbeat_region(const RegionId&,
                                                    const coordinator::RegionHeartbeat&) override {
    return coordinator::RegionHeard{};
  }
  Status delete_region(const RegionId&) override { return {}; }
  Result<rdma::QueuePairEndpoint> exchange(const NodeId&, const rdma::QueuePairEndpoint&) override {
    return no_call();
  }
  Result<std::vector<coordinator::NodeInfo>> nodes() override { return no_call(); }
  Result<coordinator::NodeInfo> node(const NodeId& id) override;
  Result<std::vector<coordinator::RegionInfo>> regions() override { return no_call(); }
  Result<coordinator::EventBatch> events(uint64_t, Milliseconds) override { return no_call(); }
  Result<std::string> get(const std::string&) override { return no_call(); }

 private:
  static tl::unexpected<Error> no_call() {
    return fail(ErrorCode::kUnsupported, "not a call of a pager");
  }

  const std::vector<std::string> nodes_;
  const uint64_t slab_bytes_;
  std::atomic<uint32_t> slab_limit_{UINT32_MAX};
};

struct TargetRigOptions {
  uint64_t pages = 2048;  // of the window: four slabs
  uint64_t budget_pages = 1000;
  uint32_t nodes = 1;  // each has a replica of every page
  uint32_t workers = 1;
  uint32_t prefetch_depth = 0;
  bool resolve_in_thread = false;
  bool keeps_copies = false;  // compressed ones
  bool adaptive_copies = false;
  bool adaptive_room = false;  // of the budget
  bool checksums = true;
  bool spares_flushes = false;                          // spare_flushes()
  Milliseconds fault_deadline = std::chrono::hours(1);  // no test waits for it
};

// Threads: one, but for what FakeAddressSpace, FakeNode and the pager's own parts allow.
class TargetRig {
 public:
  static constexpr uint64_t kSlabBytes = uint64_t{2} << 20;
  static constexpr uint64_t kSlabPages = kSlabBytes >> kPageShift;
  static constexpr uint8_t kNow = 100;  // the epoch

  explicit TargetRig(const TargetRigOptions& options = {}) : TargetRig(options, nullptr) {}
  // Another target of the same engine. Its pages go through that rig's ports, to that rig's nodes.
  TargetRig(const TargetRigOptions& options, TargetRig* engine_of);
  ~TargetRig();

  FakeNode& node(size_t index = 0) { return *nodes[index]; }
  // A port with a channel to each node.
  std::unique_ptr<LinkPort> make_port(size_t buffer_bytes);
  void connect(LinkPort& port, size_t node, rdma::ChannelLimits limits = FakeNode::kUsualLimits);
  // Waits until the slab is leased. The first one always is.
  [[nodiscard]] bool lease_slab_of(uint64_t page);
  const ReplicaLease& replica(uint64_t page, uint32_t index) const;

  PageState state(uint64_t page) const { return table.load(PageIndex{page}).state(); }
  // By the owner of the page.
  void move(uint64_t page, PageState to, uint32_t flags = 0);
  const WorkerCounts& counts(uint32_t worker = 0) const { return target.counts_of(worker); }
  const EvictorCounts& evicted() const { return target.eviction.counts; }

  // Pages that nobody has used yet get a state, with the memory, the room and the remote contents
  // that belong to it. Contents differ from page to page.
  static uint64_t word_of(uint64_t page) { return 1'000'000 + page; }
  void make_remote(uffd::PageRun run, uint32_t flags = 0);
  // The bytes of these pages at the first node are those that were written there.
  void keep_checksums(uffd::PageRun run);
  void make_clean(uffd::PageRun run);
  void make_dirty(uffd::PageRun run);
  void make_zero(uffd::PageRun run);  // Dirty, without contents
  static std::vector<std::byte> page_of(uint64_t word);
  // As a fetch that another thread has begun. Returns the page's word.
  PageWord make_fetching(uint64_t page);

  // Called by the borrower's thread, so not the rig itself, whose tests derive from it.
  class Owner final : public RegionOwner {
   public:
    explicit Owner(ColdHints& cold) : cold_(cold) {}
    void node_wanted(NodeIndex) override {}
    void leased() override { cold_.leased(); }
    coordinator::Counters counters_of(const LeaseMap&) override { return {}; }
    void replica_lost() override {}

   private:
    ColdHints& cold_;
  };

  // In the order of creation.
  CallLog log;
  std::vector<std::unique_ptr<FakeNode>> nodes;
  FakeClient client;
  const Doorbell connector_bell = std::move(*Doorbell::create());
  const std::unique_ptr<EngineCore> engine_core;  // null: it is another rig's
  EngineCore& engine;
  Budget budget;
  const std::unique_ptr<BorrowerThread> borrower_thread = std::move(*BorrowerThread::create());
  FakeAddressSpace space;
  const std::unique_ptr<ProcessImage> image;
  PageTable& table = image->table();
  Owner owner;
  TargetKeeper keeper{engine.succession, 0};
  BackingRegions backing_regions;
  PinMap pins;
  AccessMap access;
  CompressedPages copies;
  const Mapping shares;
  const Mapping times;
  TrendDetector trends;
  ClusterChoice clusters;
  Target target;

 private:
  void make_present(uffd::PageRun run, PageState state, uffd::Protection protection, bool zero);

  std::vector<Mapping> buffers_;
  size_t ports_made_ = 0;
};

inline uffd::PageRun pages_of(uint64_t first, uint32_t pages = 1) {
  return {PageIndex{first}, pages};
}

}  // namespace farpage::pager
