// Guesses: the keys that one connection of tcp or shm has shown and nobody was ever given.
#pragma once

#include <algorithm>
#include <array>

#include "base/strong.h"
#include "rdma/limits.h"

namespace farpage::rdma {

// A key that is shown again is no further guess: it tells its peer nothing new, and a borrower of a
// node's former life shows each of its keys as often as it has operations in flight.
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
