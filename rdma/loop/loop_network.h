// The one implementation of LoopNetwork, and what a host and its channels share.
#pragma once

#include <atomic>
#include <map>
#include <optional>

#include "base/mutex.h"
#include "rdma/key_table.h"
#include "rdma/loop/loop.h"
#include "rdma/session_fences.h"

namespace farpage::rdma::loop {

// Outlives the host while channels still point to it. Threads: any.
struct HostCore {
  KeyTable keys;
  SessionFences fences;
  std::atomic<bool> alive{true};     // false: the host has been destroyed
  std::atomic<bool> stalled{false};  // answers nothing, as a stopped process
  std::atomic<uint64_t> reads{0};
  std::atomic<uint64_t> writes{0};
  std::atomic<uint64_t> bytes_read{0};
  std::atomic<uint64_t> bytes_written{0};
  std::atomic<uint64_t> refused{0};
  std::atomic<uint64_t> peers{0};
};

// Threads: any. A host is found by its name while it lives; a name can be given again afterwards.
class Network final : public LoopNetwork {
 public:
  explicit Network(const LoopOptions& options);

  void set_faults(const LoopFaults& faults) override;
  void fail_next(CompletionStatus status, uint32_t operations) override;
  void set_stalled(const std::string& host_name, bool stalled) override;

  // Null if a living host has that name.
  std::shared_ptr<HostCore> add_host(const std::string& name);
  // Null if none has.
  std::shared_ptr<HostCore> find_host(const std::string& name);

  Instant now() const { return clock_->now(); }
  LoopFaults faults() const;
  // The injected failure of the next operation; nullopt: none (any more).
  std::optional<CompletionStatus> take_failure();
  uint64_t next_channel_seed() { return seed_ + next_channel_.fetch_add(1); }

 private:
  const uint64_t seed_;
  const SteadyClock steady_clock_;
  const Clock* const clock_;
  std::atomic<uint64_t> next_channel_{0};

  mutable Mutex mutex_;
  LoopFaults faults_ FARPAGE_GUARDED_BY(mutex_);
  CompletionStatus failure_ FARPAGE_GUARDED_BY(mutex_) = CompletionStatus::kOk;
  uint32_t failures_left_ FARPAGE_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::shared_ptr<HostCore>> hosts_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::rdma::loop
