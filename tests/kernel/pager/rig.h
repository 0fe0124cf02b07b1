// A pager on a real userfaultfd window of this process, and memory nodes of any transport in this
// process behind a fake of the coordinator's client.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mapping.h"
#include "coordinator/client.h"
#include "pager/engine.h"
#include "rdma/file/file.h"
#include "rdma/loop/loop.h"
#include "rdma/memory_host.h"

namespace farpage::rdma {
// For the messages of tests with parameters.
inline void PrintTo(TransportKind kind, std::ostream* out) {
  *out << to_string(kind);
}
}  // namespace farpage::rdma

namespace farpage::pager {

inline constexpr uint64_t kTestSlabBytes = uint64_t{2} << 20;

// One memory node: slabs of memory behind a host. Threads: any.
class TestNode {
 public:
  TestNode(std::string name, rdma::TransportKind kind, std::shared_ptr<rdma::LoopNetwork> loop);

  coordinator::NodeInfo info() const;
  Result<coordinator::Lease> lease(SlabIndex slab, uint32_t replica);
  // As if the process died: connections break and its memory is lost.
  void kill();
  // Restarts it with empty memory and new keys.
  void restart();
  // Revokes all leases without an event.
  void revoke_all();
  // Revokes one lease.
  void revoke(SlabIndex slab);

 private:
  void start();
  void die();

  mutable std::mutex mutex_;
  const std::string name_;
  const rdma::TransportKind kind_;
  const std::shared_ptr<rdma::LoopNetwork> loop_;
  std::string directory_;
  uint64_t incarnation_ = 0;
  uint32_t generation_ = 0;
  std::vector<std::pair<Fd, Mapping>> slabs_;
  std::vector<std::pair<SlabIndex, RemoteKey>> keys_;
  std::unique_ptr<rdma::MemoryHost> host_;
};

// Answers from its table of nodes, as a coordinator would. All regions have the same properties.
class TestClient final : public coordinator::Client {
 public:
  explicit TestClient(std::vector<std::unique_ptr<TestNode>>& nodes) : nodes_(nodes) {}

  Result<coordinator::NodeInfo> join(const coordinator::NodeJoin& node) override;
  Status heartbeat_node(const NodeId& node, const coordinator::NodeHeartbeat& heartbeat) override;
  Status remove_node(const NodeId& node, bool force) override;
  Status drain_node(const NodeId& node) override;
  Status cordon_node(const NodeId& node) override;
  Status uncordon_node(const NodeId& node) override;
  Result<coordinator::RegionInfo> create_region(const coordinator::RegionCreate& region) override;
  Result<coordinator::RegionInfo> region(const RegionId& region) override;
  Result<std::vector<coordinator::Lease>> lease_slabs(const RegionId& region,
                                                      const std::vector<SlabIndex>& slabs) override;
  Status release_slabs(const RegionId& region, const std::vector<SlabIndex>& slabs) override;
  Result<coordinator::RepairBegun> begin_repair(const RegionId& region,
                                                const coordinator::RepairBegin& repair) override;
  Status complete_repair(const RegionId& region,
                         const coordinator::RepairComplete& repair) override;
  Result<coordinator::RegionHeard> heartbeat_region(
      const RegionId& region, const coordinator::RegionHeartbeat& heartbeat) override;
  Status delete_region(const RegionId& region) override;
  Result<rdma::QueuePairEndpoint> exchange(const NodeId& node,
                                           const rdma::QueuePairEndpoint& ours) override;
  Result<std::vector<coordinator::NodeInfo>> nodes() override;
  Result<coordinator::NodeInfo> node(const NodeId& id) override;
  Result<std::vector<coordinator::RegionInfo>> regions() override;
  Result<coordinator::EventBatch> events(uint64_t since, Milliseconds timeout) override;
  Result<std::string> get(const std::string& path) override;

  // From now on every call fails, as when the coordinator is down.
  void set_down(bool down);
  // Every call fails after so long, as when the coordinator is stopped. 0: as before.
  void set_silent(Milliseconds each_call_takes);
  int leases_without_answer() const;  // calls
  // So many of the next calls that lead to a lease fail halfway, as when the coordinator is killed
  // then.
  void break_off(int calls);
  // The most slabs that are leased.
  void set_slab_limit(size_t slabs);
  int releases() const;  // calls

 private:
  Status check_up() const;
  Status check_whole();

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<TestNode>>& nodes_;
  int broken_calls_ = 0;
  coordinator::RegionInfo region_;
  bool down_ = false;
  Milliseconds silence_{0};
  int leases_without_answer_ = 0;
  size_t slab_limit_ = 1U << 16;
  int releases_ = 0;
  int region_count_ = 0;
  std::map<std::pair<std::string, uint32_t>, std::vector<coordinator::Lease>> leases_;
};

struct RigOptions {
  rdma::TransportKind transport = rdma::TransportKind::kTcp;
  uint64_t pages = 4096;  // of the window
  uint64_t local_pages = 1024;
  uint32_t replicas = 1;
  uint32_t nodes = 1;
  uint32_t workers = 2;
  uint32_t prefetch_depth = 0;
  uint32_t operations_in_flight = 64;  // of each channel
  bool resolve_in_thread = false;      // the test calls Pager::resolve()
  bool adaptive_water_marks = true;
  int broken_calls = 0;  // to the coordinator, at the start
  size_t slab_limit = 1U << 16;
  uint64_t spill_slabs = 0;  // of the file; 0: none
  OnFull on_full = OnFull::kSigbus;
  Milliseconds fault_deadline{3000};
  Milliseconds operation_timeout{500};
  ForkMode fork = ForkMode::kRefuse;
  rdma::LoopOptions loop;
  // Wraps the real address space in the test's own; empty: none.
  std::function<std::unique_ptr<uffd::AddressSpace>(std::unique_ptr<uffd::AddressSpace>)>
      wrap_space = {};
};

// For the messages of tests with parameters.
inline void PrintTo(const RigOptions& options, std::ostream* out) {
  *out << "operation timeout " << options.operation_timeout.count() << " ms, fault deadline "
       << options.fault_deadline.count() << " ms";
}

class Rig {
 public:
  explicit Rig(const RigOptions& options);
  ~Rig();

  uint64_t pages() const { return options_.pages; }
  // The window as the program sees it.
  volatile uint64_t* page(uint64_t index) {
    return reinterpret_cast<volatile uint64_t*>(base_ + index * kPageBytes);
  }
  std::byte* bytes(uint64_t index) {
    return reinterpret_cast<std::byte*>(base_ + index * kPageBytes);
  }
  Pager& pager() { return *pager_; }
  PagerStats stats() const { return pager_->stats(); }
  TestNode& node(size_t index) { return *nodes_[index]; }
  TestClient& client() { return *client_; }
  rdma::LoopNetwork& loop() { return *loop_; }
  rdma::SlabFile& file() { return *file_; }
  // Ends the pager. Its memory is released.
  void stop() { pager_.reset(); }
  // Another target of the same engine.
  struct Another {
    uint64_t base = 0;
    std::unique_ptr<Pager> pager;
    volatile uint64_t* page(uint64_t index) const {
      return reinterpret_cast<volatile uint64_t*>(base + index * kPageBytes);
    }
  };
  Another add(uint64_t pages, uint64_t local_pages);

 private:
  RigOptions options_;
  std::shared_ptr<rdma::LoopNetwork> loop_;
  std::vector<std::unique_ptr<TestNode>> nodes_;
  std::unique_ptr<TestClient> client_;
  std::unique_ptr<rdma::OpenFile> file_;
  std::vector<std::unique_ptr<rdma::Transport>> transports_;
  std::unique_ptr<Engine> engine_;
  uint64_t base_ = 0;
  std::unique_ptr<Pager> pager_;
};

// How long a test waits for another thread before it fails.
inline constexpr Seconds kPatience{60};

template <typename Condition>
bool comes_true(Condition condition) {
  const Instant begin = SteadyClock::read();
  while (SteadyClock::read() - begin < kPatience) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return false;
}

// Some words of a page, which differ between its versions.
inline uint64_t content(uint64_t page, uint64_t version) {
  return page * 0x9E3779B97F4A7C15ULL + version;
}
inline void fill(Rig& rig, uint64_t page, uint64_t version) {
  volatile uint64_t* words = rig.page(page);
  for (size_t i = 0; i < kPageBytes / 8; i += 64) words[i] = content(page, version) + i;
}
inline bool holds(Rig& rig, uint64_t page, uint64_t version) {
  volatile uint64_t* words = rig.page(page);
  for (size_t i = 0; i < kPageBytes / 8; i += 64)
    if (words[i] != content(page, version) + i) return false;
  return true;
}

// Runs `touch` on the calling thread; true if it ended in SIGBUS at an address in the page of
// `word`.
bool ends_in_sigbus(volatile uint64_t* word, const std::function<void()>& touch);
inline bool ends_in_sigbus(volatile uint64_t* word) {
  return ends_in_sigbus(word, [word] { (void)*word; });
}

}  // namespace farpage::pager
