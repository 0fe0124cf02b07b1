// HeldPeers: peers that presented keys the node never issued. Their new connections are served only
// after a delay, which makes guessing slow; open connections continue.
#pragma once

#include <map>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"

namespace farpage::rdma {

// A peer is identified by its host's address (tcp) or its user (shm).
//
// Threads: any. Bounded: at kMaxPeers the entry that expires first is dropped.
class HeldPeers {
 public:
  static constexpr size_t kMaxPeers = 1024;

  void hold(const std::string& peer, Instant until) {
    const MutexLock lock(mutex_);
    if (held_.size() >= kMaxPeers && held_.count(peer) == 0) forget_first();
    held_[peer] = until;
  }
  // How long a new connection of this peer must wait; 0: not at all.
  Nanoseconds hold_of(const std::string& peer, Instant now) {
    const MutexLock lock(mutex_);
    const auto held = held_.find(peer);
    if (held == held_.end()) return Nanoseconds(0);
    if (held->second > now) return held->second - now;
    held_.erase(held);
    return Nanoseconds(0);
  }

 private:
  void forget_first() FARPAGE_REQUIRES(mutex_) {
    auto first = held_.begin();
    for (auto entry = held_.begin(); entry != held_.end(); ++entry)
      if (entry->second < first->second) first = entry;
    held_.erase(first);
  }

  Mutex mutex_;
  std::map<std::string, Instant> held_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::rdma
