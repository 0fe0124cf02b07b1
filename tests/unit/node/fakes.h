// Fakes of the two peers of a node: a memory host, and a coordinator.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/client.h"
#include "rdma/memory_host.h"

namespace farpage::node {

inline constexpr uint64_t kSlab = uint64_t{2} << 20;

// Issues and withdraws keys; no peer ever connects. Threads: any.
class FakeHost final : public rdma::MemoryHost {
 public:
  explicit FakeHost(rdma::TransportKind kind) : kind_(kind) {}

  rdma::TransportAddress address() const override { return {kind_, "127.0.0.1:7072"}; }
  Result<RemoteKey> expose(const rdma::SlabMemory& slab, Generation generation,
                           rdma::SessionGroup /*borrower*/) override {
    const std::lock_guard lock(mutex_);
    if (failing_) return fail(ErrorCode::kExhausted, "memlock limit");
    exposed_[++last_key_] = {slab, generation};
    return RemoteKey{last_key_};
  }
  void withdraw(RemoteKey key) override {
    const std::lock_guard lock(mutex_);
    exposed_.erase(key.value);
  }
  Result<rdma::QueuePairEndpoint> accept(const rdma::QueuePairEndpoint& peer) override {
    rdma::QueuePairEndpoint ours = peer;
    ours.qpn = peer.qpn + 1;
    return ours;
  }
  rdma::HostCounters counters() const override {
    rdma::HostCounters counters;
    counters.reads = 7;
    counters.bytes_read = 28672;
    counters.refused = 1;
    return counters;
  }

  void fail_from_now_on(bool failing) {
    const std::lock_guard lock(mutex_);
    failing_ = failing;
  }
  size_t exposed() const {
    const std::lock_guard lock(mutex_);
    return exposed_.size();
  }
  std::optional<rdma::SlabMemory> memory_of(RemoteKey key) const {
    const std::lock_guard lock(mutex_);
    const auto found = exposed_.find(key.value);
    if (found == exposed_.end()) return std::nullopt;
    return found->second.memory;
  }

 private:
  struct Exposed {
    rdma::SlabMemory memory;
    Generation generation;
  };
  const rdma::TransportKind kind_;
  mutable std::mutex mutex_;
  std::map<uint32_t, Exposed> exposed_;
  uint32_t last_key_ = 100;
  bool failing_ = false;
};

// The calls of the node's client and the answers to them; shared by the test and that client.
// Threads: any.
class FakeCoordinator {
 public:
  // "join", "heartbeat", "drain", "remove", "remove force".
  void wait_for_calls(const std::string& call, size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return count_locked(call) >= count; });
  }
  size_t count(const std::string& call) const {
    const std::lock_guard lock(mutex_);
    return count_locked(call);
  }
  std::vector<std::string> calls_without_heartbeats() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> calls;
    for (const std::string& call : calls_)
      if (call != "heartbeat") calls.push_back(call);
    return calls;
  }
  void answer_joins(Status answer) { set(join_answer_, std::move(answer)); }
  void answer_heartbeats(Status answer) { set(heartbeat_answer_, std::move(answer)); }
  void answer_drains(Status answer) { set(drain_answer_, std::move(answer)); }
  // Answers one heartbeat with 410, as a coordinator that restarted without its state does.
  void forget_node() {
    const std::lock_guard lock(mutex_);
    forget_next_ = true;
  }
  coordinator::NodeJoin last_join() const {
    const std::lock_guard lock(mutex_);
    return last_join_;
  }
  coordinator::NodeHeartbeat last_heartbeat() const {
    const std::lock_guard lock(mutex_);
    return last_heartbeat_;
  }

  Status on_join(const coordinator::NodeJoin& join) {
    const std::lock_guard lock(mutex_);
    last_join_ = join;
    note("join");
    return join_answer_;
  }
  Status on_heartbeat(const coordinator::NodeHeartbeat& heartbeat) {
    const std::lock_guard lock(mutex_);
    last_heartbeat_ = heartbeat;
    note("heartbeat");
    if (std::exchange(forget_next_, false)) return fail(ErrorCode::kNotFound, "join again");
    return heartbeat_answer_;
  }
  Status on_call(const std::string& call) {
    const std::lock_guard lock(mutex_);
    note(call);
    return call == "drain" ? drain_answer_ : Status();
  }

 private:
  size_t count_locked(const std::string& call) const {
    return static_cast<size_t>(std::count(calls_.begin(), calls_.end(), call));
  }
  void set(Status& answer, Status value) {
    const std::lock_guard lock(mutex_);
    answer = std::move(value);
  }
  void note(const std::string& call) {
    calls_.push_back(call);
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> calls_;
  Status join_answer_;
  Status heartbeat_answer_;
  Status drain_answer_;
  bool forget_next_ = false;
  coordinator::NodeJoin last_join_;
  coordinator::NodeHeartbeat last_heartbeat_;
};

class FakeClient final : public coordinator::Client {
 public:
  explicit FakeClient(FakeCoordinator& coordinator) : coordinator_(coordinator) {}

  Result<coordinator::NodeInfo> join(const coordinator::NodeJoin& node) override {
    FARPAGE_TRY_VOID(coordinator_.on_join(node));
    coordinator::NodeInfo info;
    info.join = node;
    return info;
  }
  Status heartbeat_node(const NodeId&, const coordinator::NodeHeartbeat& heartbeat) override {
    return coordinator_.on_heartbeat(heartbeat);
  }
  Status remove_node(const NodeId&, bool force) override {
    return coordinator_.on_call(force ? "remove force" : "remove");
  }
  Status drain_node(const NodeId&) override { return coordinator_.on_call("drain"); }
  Status cordon_node(const NodeId&) override { return never(); }
  Status uncordon_node(const NodeId&) override { return never(); }

  // A node calls none of these.
  Result<coordinator::RegionInfo> create_region(const coordinator::RegionCreate&) override {
    return never();
  }
  Result<coordinator::RegionInfo> region(const RegionId&) override { return never(); }
  Result<std::vector<coordinator::Lease>> lease_slabs(const RegionId&,
                                                      const std::vector<SlabIndex>&) override {
    return never();
  }
  Status release_slabs(const RegionId&, const std::vector<SlabIndex>&) override { return never(); }
  Result<coordinator::RepairBegun> begin_repair(const RegionId&,
                                                const coordinator::RepairBegin&) override {
    return never();
  }
  Status complete_repair(const RegionId&, const coordinator::RepairComplete&) override {
    return never();
  }
  Result<coordinator::RegionHeard> heartbeat_region(const RegionId&,
                                                    const coordinator::RegionHeartbeat&) override {
    return never();
  }
  Status delete_region(const RegionId&) override { return never(); }
  Result<rdma::QueuePairEndpoint> exchange(const NodeId&, const rdma::QueuePairEndpoint&) override {
    return never();
  }
  Result<std::vector<coordinator::NodeInfo>> nodes() override { return never(); }
  Result<coordinator::NodeInfo> node(const NodeId&) override { return never(); }
  Result<std::vector<coordinator::RegionInfo>> regions() override { return never(); }
  Result<coordinator::EventBatch> events(uint64_t, Milliseconds) override { return never(); }
  Result<std::string> get(const std::string&) override { return never(); }

 private:
  static tl::unexpected<Error> never() {
    return fail(ErrorCode::kUnsupported, "not a call of a node");
  }
  FakeCoordinator& coordinator_;
};

inline std::unique_ptr<FakeClient> client_of(FakeCoordinator& coordinator) {
  return std::make_unique<FakeClient>(coordinator);
}

}  // namespace farpage::node
