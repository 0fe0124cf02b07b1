#include "pager/core.h"

namespace farpage::pager {

void Core::lose_replica(PageIndex page, PageWord word, const ReplicaLease& replica,
                        const char* why) {
  if (mark_lost(leases_of(word), nodes, page, replica, why))
    shared_stats.replicas_lost.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace farpage::pager
