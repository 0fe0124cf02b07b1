// HeldAddresses: hosts that showed keys which nobody was ever given. A new connection from one of
// them is served only after a while, so guessing is slow; connections that are open go on.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "base/clock.h"

namespace farpage::rdma::tcp {

// Threads: any. Bounded: at kMaxAddresses the one that is free first is forgotten.
class HeldAddresses {
 public:
  static constexpr size_t kMaxAddresses = 1024;

  void hold(const std::string& address, Instant until) {
    const std::lock_guard lock(mutex_);
    if (held_.size() >= kMaxAddresses && held_.count(address) == 0) forget_first();
    held_[address] = until;
  }
  // Until when a connection from there waits; in the past when it need not.
  Instant held_until(const std::string& address, Instant now) {
    const std::lock_guard lock(mutex_);
    const auto held = held_.find(address);
    if (held == held_.end()) return Instant{0};
    const Instant until = held->second;
    if (until <= now) held_.erase(held);
    return until;
  }

 private:
  void forget_first() {
    auto first = held_.begin();
    for (auto entry = held_.begin(); entry != held_.end(); ++entry)
      if (entry->second < first->second) first = entry;
    held_.erase(first);
  }

  std::mutex mutex_;
  std::map<std::string, Instant> held_;  // guarded by mutex_
};

}  // namespace farpage::rdma::tcp
