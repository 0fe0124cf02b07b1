#include <vector>

#include "rdma/loop/loop_network.h"

namespace farpage::rdma {
namespace loop {
namespace {

// Threads: any.
class LoopMemoryHost final : public MemoryHost {
 public:
  LoopMemoryHost(std::string name, std::shared_ptr<HostCore> core)
      : name_(std::move(name)), core_(std::move(core)) {}

  ~LoopMemoryHost() override {
    core_->alive.store(false, std::memory_order_release);
    std::vector<RemoteKey> keys;
    {
      const MutexLock lock(mutex_);
      keys.swap(exposed_);
    }
    for (const RemoteKey key : keys) (void)core_->keys.withdraw(key);
  }

  TransportAddress address() const override { return {TransportKind::kLoop, name_}; }

  Result<RemoteKey> expose(const SlabMemory& slab, Generation generation,
                           SessionGroup /*borrower*/) override {
    FARPAGE_TRY(key, core_->keys.insert(slab, generation));
    const MutexLock lock(mutex_);
    exposed_.push_back(key);
    return key;
  }

  void withdraw(RemoteKey key) override {
    (void)core_->keys.withdraw(key);
    const MutexLock lock(mutex_);
    std::erase(exposed_, key);
  }

  Result<QueuePairEndpoint> accept(const QueuePairEndpoint& /*peer*/) override {
    return fail(ErrorCode::kUnsupported, "the loop transport has no queue pairs");
  }

  HostCounters counters() const override {
    const auto get = [](const auto& counter) { return counter.load(std::memory_order_relaxed); };
    HostCounters result;
    result.reads = get(core_->reads);
    result.writes = get(core_->writes);
    result.bytes_read = get(core_->bytes_read);
    result.bytes_written = get(core_->bytes_written);
    result.refused = get(core_->refused);
    result.peers = get(core_->peers);
    return result;
  }

 private:
  const std::string name_;
  const std::shared_ptr<HostCore> core_;
  Mutex mutex_;
  std::vector<RemoteKey> exposed_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace
}  // namespace loop

Result<std::unique_ptr<MemoryHost>> make_loop_memory_host(
    const std::shared_ptr<LoopNetwork>& network, const std::string& name) {
  std::shared_ptr<loop::HostCore> core =
      std::static_pointer_cast<loop::Network>(network)->add_host(name);
  if (core == nullptr)
    return fail(ErrorCode::kConflict, "a loop host named '" + name + "' is alive");
  return std::make_unique<loop::LoopMemoryHost>(name, std::move(core));
}

}  // namespace farpage::rdma
