// Guesses: the keys presented on one tcp or shm connection that the node never issued.
#pragma once

#include <algorithm>
#include <array>

#include "base/strong.h"
#include "rdma/limits.h"

namespace farpage::rdma {

// Each key counts once: presenting it again tells the peer nothing new, and a borrower of the
// node's previous run presents each of its keys as often as it has operations in flight.
//
// Threads: one.
class Guesses {
 public:
  void add(const RemoteKey& key) {
    const auto end = keys_.begin() + count_;
    if (too_many() || std::find(keys_.begin(), end, key) != end) return;
    keys_[count_++] = key;
  }
  bool too_many() const { return count_ == kMaxUnknownKeys; }

 private:
  std::array<RemoteKey, kMaxUnknownKeys> keys_ = {};
  uint32_t count_ = 0;
};

}  // namespace farpage::rdma
