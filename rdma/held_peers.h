// HeldPeers: who showed keys that nobody was ever given. A new connection from there is served only
// after a while, so guessing is slow; connections that are open go on.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "base/clock.h"

namespace farpage::rdma {

// A peer is named by its host's address (tcp) or its user (shm).
//
// Threads: any. Bounded: at kMaxPeers the one that is free first is forgotten.
class HeldPeers {
 public:
  static constexpr size_t kMaxPeers = 1024;

  void hold(const std::string& peer, Instant until) {
    const std::lock_guard lock(mutex_);
    if (held_.size() >= kMaxPeers && held_.count(peer) == 0) forget_first();
    held_[peer] = until;
  }
  // How long a connection from there waits; 0: it need not.
  Nanoseconds hold_of(const std::string& peer, Instant now) {
    const std::lock_guard lock(mutex_);
    const auto held = held_.find(peer);
    if (held == held_.end()) return Nanoseconds(0);
    if (held->second > now) return held->second - now;
    held_.erase(held);
    return Nanoseconds(0);
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

}  // namespace farpage::rdma
