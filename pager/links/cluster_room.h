// What the cluster has left to lend, as its coordinator says, and the warning that it is little.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "coordinator/client.h"

namespace farpage::pager {

struct ClusterRoom {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;       // of nodes that are alive
  uint64_t disk_free_bytes = 0;  // on nodes that lend room of a disk; not in the others
  bool is_nearly_full(uint64_t percent) const {
    return total_bytes > 0 && (total_bytes - free_bytes) / percent >= total_bytes / 100;
  }
};
Result<ClusterRoom> room_of(coordinator::Client& client);

// Says once that a cluster is nearly full, and again after it was not. Threads: one.
class ClusterRoomWatch {
 public:
  static constexpr uint64_t kWarnPercent = 80;
  // Asks the coordinator when slabs have been leased since it did, at most once a second.
  void leased() { is_due_ = true; }
  void look(coordinator::Client& client, Instant now);

 private:
  Instant next_{0};
  bool is_due_ = false;
  bool said_ = false;
};

}  // namespace farpage::pager
