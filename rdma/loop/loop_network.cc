#include "rdma/loop/loop_network.h"

#include "base/check.h"

namespace farpage::rdma {
namespace loop {

Network::Network(const LoopOptions& options)
    : seed_(options.seed),
      clock_(options.clock != nullptr ? options.clock : &steady_clock_),
      faults_(options.faults) {}

void Network::set_faults(const LoopFaults& faults) {
  const MutexLock lock(mutex_);
  faults_ = faults;
}

LoopFaults Network::faults() const {
  const MutexLock lock(mutex_);
  return faults_;
}

void Network::fail_next(CompletionStatus status, uint32_t operations) {
  FARPAGE_CHECK(status != CompletionStatus::kOk, "%u operations cannot fail with ok", operations);
  const MutexLock lock(mutex_);
  failure_ = status;
  failures_left_ = operations;
}

std::optional<CompletionStatus> Network::take_failure() {
  const MutexLock lock(mutex_);
  if (failures_left_ == 0) return std::nullopt;
  --failures_left_;
  return failure_;
}

void Network::set_stalled(const std::string& host_name, bool stalled) {
  if (const std::shared_ptr<HostCore> host = find_host(host_name))
    host->stalled.store(stalled, std::memory_order_release);
}

std::shared_ptr<HostCore> Network::add_host(const std::string& name) {
  const MutexLock lock(mutex_);
  std::shared_ptr<HostCore>& host = hosts_[name];
  if (host != nullptr && host->alive.load(std::memory_order_acquire)) return nullptr;
  host = std::make_shared<HostCore>();
  return host;
}

std::shared_ptr<HostCore> Network::find_host(const std::string& name) {
  const MutexLock lock(mutex_);
  const auto found = hosts_.find(name);
  if (found == hosts_.end() || !found->second->alive.load(std::memory_order_acquire))
    return nullptr;
  return found->second;
}

}  // namespace loop

std::shared_ptr<LoopNetwork> make_loop_network(const LoopOptions& options) {
  return std::make_shared<loop::Network>(options);
}

}  // namespace farpage::rdma
