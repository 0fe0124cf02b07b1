// LeaseMap: the remote addresses of each slab's pages. Read on the fault path, written by the
// borrower thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/mapping.h"
#include "base/result.h"
#include "coordinator/api.h"
#include "rdma/transport.h"

namespace farpage::pager {

// Number of a memory node inside this pager: an index into the tables of channels.
using NodeIndex = Strong<struct NodeIndexTag, uint16_t>;

inline constexpr size_t kTransportKinds = 4;

// One replica of one slab.
struct ReplicaLease {
  NodeIndex node;
  RemoteAddress address;
  std::array<std::optional<RemoteKey>, kTransportKinds> keys;  // by TransportKind
  Generation generation;
  // Set once: the node, its memory or the access right is gone. Not read or written any more.
  mutable std::atomic<bool> lost{false};
};

struct SlabLease {
  uint32_t replica_count = 0;
  std::array<ReplicaLease, coordinator::kMaxReplicas> replicas;
};

// Threads: find() and mark_lost() from any thread without a lock; publish() under its own mutex. A
// published lease stays valid memory for the life of the map.
class LeaseMap {
 public:
  // For a region of up to `pages` pages in slabs of `slab_bytes`.
  static Result<std::unique_ptr<LeaseMap>> create(uint64_t pages, uint64_t slab_bytes);

  uint64_t slabs() const { return slabs_; }
  uint32_t pages_per_slab() const { return uint32_t{1} << pages_per_slab_shift_; }
  SlabIndex slab_of(PageIndex page) const {
    return SlabIndex{static_cast<uint32_t>(page.value >> pages_per_slab_shift_)};
  }

  // The leases of the slab that holds the page; nullptr: nothing is leased there (yet).
  const SlabLease* find(PageIndex page) const {
    return entry(slab_of(page)).lease.load(std::memory_order_acquire);
  }
  // Identity mapping: where the page lies on that replica.
  RemoteAddress address_of(const ReplicaLease& replica, PageIndex page) const {
    const uint64_t in_slab = page.value & (pages_per_slab() - 1);
    return RemoteAddress{replica.address.value + (in_slab << kPageShift)};
  }

  void publish(SlabIndex slab, std::unique_ptr<SlabLease> lease);

  // The first call for a page of a slab returns true; from then on a lease is wanted.
  bool touch(PageIndex page);
  // Slabs that are wanted and not leased, at most `limit`.
  std::vector<SlabIndex> wanted(size_t limit) const;

 private:
  struct Entry {
    std::atomic<const SlabLease*> lease{nullptr};
    std::atomic<uint8_t> touched{0};
  };
  LeaseMap(Mapping memory, uint64_t slabs, unsigned shift);
  Entry& entry(SlabIndex slab) const {
    return reinterpret_cast<Entry*>(memory_.data())[slab.value];
  }

  Mapping memory_;
  const uint64_t slabs_;
  const unsigned pages_per_slab_shift_;
  std::atomic<uint64_t> touched_slabs_{0};  // one more than the highest touched one
  std::mutex mutex_;
  std::vector<std::unique_ptr<SlabLease>> published_;  // guarded by mutex_; all that ever were
};

}  // namespace farpage::pager
