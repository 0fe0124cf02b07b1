// LeaseMap: the remote addresses of each slab's pages, and the checksums of what is there. Read on
// the fault path; addresses are written by the borrower thread, checksums by the one that evicts.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mapping.h"
#include "base/mutex.h"
#include "base/result.h"
#include "coordinator/api.h"
#include "pager/pages/slot_checksums.h"
#include "rdma/transport.h"

namespace farpage::pager {

// Number of a memory node inside this pager: an index into the tables of channels.
using NodeIndex = Strong<struct NodeIndexTag, uint16_t>;
// No node: the file of this host (rdma/slab_file.h).
inline constexpr NodeIndex kFileNode{coordinator::kMaxNodes};

inline constexpr size_t kTransportKinds = 5;

class StoredPages;

//   filling --> live --> lost        the node, its memory or the access right is gone
//      |          |
//      +----------+----> withdrawn   another replica has taken its place (region_repair.h)
enum class ReplicaState : uint8_t {
  kFilling,    // gets every WRITE, and lacks pages that were written before: not read
  kLive,       // has every page: read and written
  kLost,       // has missed a write, or cannot be used any more: neither read nor written
  kWithdrawn,  // the same, but on purpose
};

// One replica of one slab.
struct ReplicaLease {
  NodeIndex node;
  RemoteAddress address;
  std::array<std::optional<RemoteKey>, kTransportKinds> keys;  // by TransportKind
  Generation generation;
  Instant since{0};  // it is in the map
  mutable std::atomic<ReplicaState> state{ReplicaState::kLive};

  ReplicaLease() = default;
  ReplicaLease(const ReplicaLease& other)
      : node(other.node),
        address(other.address),
        keys(other.keys),
        generation(other.generation),
        since(other.since),
        state(other.state.load(std::memory_order_acquire)) {}
  ReplicaLease& operator=(const ReplicaLease&) = delete;

  bool is_read() const { return state.load(std::memory_order_acquire) == ReplicaState::kLive; }
  bool is_written() const {
    const ReplicaState now = state.load(std::memory_order_acquire);
    return now == ReplicaState::kLive || now == ReplicaState::kFilling;
  }
  // Ends its use; false: that was the case before. `as`: kLost or kWithdrawn.
  bool end(ReplicaState as) const;
  // From kFilling; false: it has ended meanwhile.
  bool filled() const;
};

// The replicas of one slab at one moment, ended ones too. An operation looks the lease up once and
// keeps the pointer until it ends: LeaseMap::add() may publish another one meanwhile.
struct SlabLease {
  // While a replica on a node that drains is copied, it is there beside the one that is filling.
  static constexpr uint32_t kMaxPlaces = coordinator::kMaxReplicas + 1;
  uint32_t replica_count = 0;
  std::array<const ReplicaLease*, kMaxPlaces> replicas{};

  std::span<const ReplicaLease* const> all() const {
    return std::span(replicas).first(replica_count);
  }
  // Those that can be read.
  uint32_t live() const {
    uint32_t live = 0;
    for (const ReplicaLease* replica : all()) live += replica->is_read() ? 1 : 0;
    return live;
  }
  // The one that is read from the file; nullptr: none.
  const ReplicaLease* live_in_file() const {
    for (const ReplicaLease* replica : all())
      if (replica->node == kFileNode && replica->is_read()) return replica;
    return nullptr;
  }
  // The one with this name; nullptr: none.
  const ReplicaLease* find(NodeIndex node, Generation generation) const {
    for (const ReplicaLease* replica : all())
      if (replica->node == node && replica->generation == generation) return replica;
    return nullptr;
  }
};

// Threads: find() from any thread without a lock; publish() and add() under a mutex. Leases and
// replicas stay valid memory for the life of the map. The replicas, with their states, are in
// memory that may survive this process: a lease is there before it is found, and a replica is lost
// there at the same moment as here.
class LeaseMap {
 public:
  // For a region of up to `pages` pages in slabs of `slab_bytes`.
  static Result<std::unique_ptr<LeaseMap>> create(uint64_t pages, uint64_t slab_bytes);
  // With its replicas in `kept`, of kept_bytes(): zeros, or what a dead process has left there.
  // `checksums`: likewise.
  static Result<std::unique_ptr<LeaseMap>> create(uint64_t pages, uint64_t slab_bytes, Mapping kept,
                                                  SlotChecksums checksums);
  static size_t kept_bytes(uint64_t pages, uint64_t slab_bytes);
  // Of whole slabs.
  static size_t checksums_bytes(uint64_t pages, uint64_t slab_bytes);

  uint64_t slabs() const { return slabs_; }
  uint32_t pages_per_slab() const { return uint32_t{1} << pages_per_slab_shift_; }
  SlabIndex slab_of(PageIndex page) const {
    return SlabIndex{static_cast<uint32_t>(place_of(page).value >> pages_per_slab_shift_)};
  }

  // Before it has readers: pages lie where `stored` says, which outlives the map.
  void use(const StoredPages& stored) { stored_ = &stored; }
  // Where the page lies among the pages of all slabs. Mostly the identity.
  PageIndex place_of(PageIndex page) const {
    return stored_ == nullptr ? page : place_of_stored(page);
  }
  bool is_stored() const { return stored_ != nullptr; }
  // Are these the bytes of the page? Of a page whose checksum is not known: yes.
  bool is_right(PageIndex page, std::span<const std::byte> bytes) const {
    return is_stored() ? is_right_of_stored(page, bytes) : checksums_.match(page, bytes);
  }

  // The leases of the slab that holds the page; nullptr: nothing is leased there (yet).
  const SlabLease* find(PageIndex page) const {
    return entry(slab_of(page)).lease.load(std::memory_order_acquire);
  }
  const SlabLease* find(SlabIndex slab) const {
    return entry(slab).lease.load(std::memory_order_acquire);
  }
  // Where the page lies on that replica.
  RemoteAddress address_of(const ReplicaLease& replica, PageIndex page) const {
    const uint64_t in_slab = place_of(page).value & (pages_per_slab() - 1);
    return RemoteAddress{replica.address.value + (in_slab << kPageShift)};
  }

  SlotChecksums& checksums() { return checksums_; }
  const SlotChecksums& checksums() const { return checksums_; }

  // The first lease of the slab: 1 to kMaxReplicas replicas on nodes, or one in the file.
  void publish(SlabIndex slab, std::vector<std::unique_ptr<const ReplicaLease>> replicas);
  // One more replica of the slab: in the place of one that has ended, or else in a further one.
  // Both leases share the other replicas: what one operation learns of a replica, all know. An
  // operation that began before does not know the new one: whoever fills it starts after these have
  // ended. nullptr, and nothing changes: the slab has no replica that can be read, from which one
  // that is filling could be filled, or no place, or this map has had too many replicas.
  const ReplicaLease* add(SlabIndex slab, const ReplicaLease& replica);
  // `old` is not used any more, because `by`, which is live, has taken its place. False, and
  // nothing changes: `by` has ended.
  bool withdraw(const ReplicaLease& old, const ReplicaLease& by);
  // `replica` has missed a write that `other` has. False: it had ended before, or `other` has.
  bool give_up(const ReplicaLease& replica, const ReplicaLease& other) const;

  // The first call for a page of a slab returns true; from then on a lease is wanted.
  bool touch(PageIndex page);
  // Slabs that are wanted and not leased, at most `limit`.
  std::vector<SlabIndex> wanted(size_t limit) const;
  uint64_t leased_slabs() const;
  // One more than the highest slab that touch() was called for.
  uint64_t slabs_touched() const { return touched_slabs_.load(std::memory_order_acquire); }

 private:
  struct Entry {
    std::atomic<const SlabLease*> lease{nullptr};
    std::atomic<uint8_t> touched{0};
  };
  // A replica in its slab's lease: place 0 to kMaxPlaces - 1. A later record takes the place of
  // an earlier one.
  struct Record {
    uint32_t slab = 0;
    uint32_t place = 0;
    ReplicaLease lease;
  };
  struct KeptHead {
    std::atomic<uint64_t> count;  // of the records, which follow
  };
  LeaseMap(Mapping memory, Mapping kept, SlotChecksums checksums, uint64_t slabs, unsigned shift);
  static uint64_t most_records(uint64_t slabs);
  // Room for the first lease of each slab is never given to further replicas.
  bool may_add(uint64_t count) const FARPAGE_REQUIRES(mutex_) {
    return count + (slabs_ - published_slabs_) * coordinator::kMaxReplicas < most_records(slabs_);
  }
  KeptHead& head() const { return *reinterpret_cast<KeptHead*>(kept_.data()); }
  Record* records() const { return reinterpret_cast<Record*>(kept_.data() + kCacheLine); }
  const ReplicaLease* keep(uint64_t record, SlabIndex slab, uint32_t place,
                           const ReplicaLease& replica) FARPAGE_REQUIRES(mutex_);
  void store(SlabIndex slab, std::unique_ptr<const SlabLease> lease) FARPAGE_REQUIRES(mutex_);
  void find_kept();
  Entry& entry(SlabIndex slab) const {
    return reinterpret_cast<Entry*>(memory_.data())[slab.value];
  }

  PageIndex place_of_stored(PageIndex page) const;
  bool is_right_of_stored(PageIndex page, std::span<const std::byte> bytes) const;

  static constexpr size_t kCacheLine = 64;

  const StoredPages* stored_ = nullptr;  // null: the identity
  Mapping memory_;
  Mapping kept_;
  SlotChecksums checksums_;
  const uint64_t slabs_;
  const unsigned pages_per_slab_shift_;
  std::atomic<uint64_t> touched_slabs_{0};  // one more than the highest touched one
  mutable Mutex mutex_;
  uint64_t published_slabs_ FARPAGE_GUARDED_BY(mutex_) = 0;
  // All that ever were.
  std::vector<std::unique_ptr<const SlabLease>> published_ FARPAGE_GUARDED_BY(mutex_);
};

}  // namespace farpage::pager
