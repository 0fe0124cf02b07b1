// SlabTransfer: single READs and WRITEs of a replica, each waited for: of a thread that has time.
#pragma once

#include <atomic>
#include <optional>
#include <span>

#include "pager/links/lease_map.h"
#include "pager/links/link_port.h"
#include "pager/links/posting.h"

namespace farpage::pager {

// What is left of the time that so many bytes take at this rate.
Nanoseconds rest_at_rate(uint64_t bytes, uint64_t bytes_per_second, Nanoseconds took);

// Between two looks at an operation that has been waited for so long.
void pause_between_looks(Nanoseconds waited);

// Threads: the owner of the port, which has nothing else in flight during a call. Port and
// `stopping` outlive it.
class SlabTransfer {
 public:
  SlabTransfer(LinkPort& port, const std::atomic<bool>& stopping)
      : port_(port), stopping_(stopping) {}

  // Of consecutive pages of one slab, to or from a part of the port's buffer. Returns within the
  // operation timeout once it is posted. nullopt: it was not posted, because there was no channel
  // to the node for a second, or the thread is to end.
  std::optional<rdma::CompletionStatus> run(rdma::OperationKind kind, const LeaseMap& leases,
                                            const ReplicaLease& replica, PageIndex first,
                                            std::span<std::byte> local);
  bool read(const LeaseMap& leases, const ReplicaLease& replica, PageIndex first,
            std::span<std::byte> into) {
    return run(rdma::OperationKind::kRead, leases, replica, first, into) ==
           rdma::CompletionStatus::kOk;
  }
  // Of the port.
  std::span<std::byte> buffer() const { return port_.buffer(); }
  bool is_stopping() const { return stopping_.load(std::memory_order_acquire); }

 private:
  LinkPort& port_;
  const std::atomic<bool>& stopping_;
  Posting<1> posting_{port_};
};

}  // namespace farpage::pager
