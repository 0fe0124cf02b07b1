#include "pager/core.h"

#include <spdlog/spdlog.h>

namespace farpage::pager {

void Core::lose_replica(PageIndex page, const ReplicaLease& replica, const char* why) {
  if (replica.lost.exchange(true, std::memory_order_acq_rel)) return;
  shared_stats.replicas_lost.fetch_add(1, std::memory_order_relaxed);
  spdlog::warn("pager: replica_lost slab={} node={} reason=\"{}\"", leases.slab_of(page).value,
               nodes.name_of(replica.node), why);
}

}  // namespace farpage::pager
