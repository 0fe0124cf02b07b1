// RegionGate: serializes the requests that change one region, also while they wait for a node's
// answer, so that a repeated request sees the result of the first one.
#pragma once

#include <set>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "coordinator/api.h"

namespace farpage::coordinator {

// Threads: any. Requests for different regions do not wait for each other; those for one region
// enter in no particular order.
class RegionGate {
 public:
  // The right to change the region, until destroyed. Move-only; the gate outlives it.
  class Hold {
   public:
    Hold(RegionGate& gate, RegionId region) : gate_(&gate), region_(std::move(region)) {}
    Hold(Hold&& other) noexcept : gate_(other.gate_), region_(std::move(other.region_)) {
      other.gate_ = nullptr;
    }
    Hold& operator=(Hold&&) = delete;
    ~Hold() {
      if (gate_ != nullptr) gate_->leave(region_);
    }

   private:
    RegionGate* gate_;
    RegionId region_;
  };

  // Waits until no other request holds the region. kUnavailable: not within `timeout`.
  Result<Hold> enter(const RegionId& region, Milliseconds timeout) {
    MutexLock lock(mutex_);
    if (!left_.wait_for(lock, timeout,
                        [&]() FARPAGE_REQUIRES(mutex_) { return busy_.count(region) == 0; }))
      return fail(ErrorCode::kUnavailable, "another request for this region takes long: try again");
    busy_.insert(region);
    return Hold(*this, region);
  }

 private:
  void leave(const RegionId& region) {
    {
      const MutexLock lock(mutex_);
      busy_.erase(region);
    }
    left_.notify_all();
  }

  Mutex mutex_;
  ConditionVariable left_;
  // Regions that a request holds, also ones that do not exist (any more).
  std::set<RegionId> busy_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::coordinator
