#include "pager/links/lease_map.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace farpage::pager {

LeaseMap::LeaseMap(Mapping memory, uint64_t slabs, unsigned shift)
    : memory_(std::move(memory)), slabs_(slabs), pages_per_slab_shift_(shift) {}

Result<std::unique_ptr<LeaseMap>> LeaseMap::create(uint64_t pages, uint64_t slab_bytes) {
  FARPAGE_CHECK(std::has_single_bit(slab_bytes), "slab of %llu bytes",
                static_cast<unsigned long long>(slab_bytes));
  const auto shift = static_cast<unsigned>(std::countr_zero(slab_bytes)) - kPageShift;
  const uint64_t slabs = (pages + (uint64_t{1} << shift) - 1) >> shift;
  FARPAGE_TRY(memory, Mapping::anonymous(slabs * sizeof(Entry)));
  return std::unique_ptr<LeaseMap>(new LeaseMap(std::move(memory), slabs, shift));
}

bool ReplicaLease::end(ReplicaState as) const {
  ReplicaState now = state.load(std::memory_order_acquire);
  while (now == ReplicaState::kLive || now == ReplicaState::kFilling)
    if (state.compare_exchange_weak(now, as, std::memory_order_acq_rel)) return true;
  return false;
}

bool ReplicaLease::filled() const {
  ReplicaState filling = ReplicaState::kFilling;
  return state.compare_exchange_strong(filling, ReplicaState::kLive, std::memory_order_acq_rel);
}

void LeaseMap::publish(SlabIndex slab, std::vector<std::unique_ptr<const ReplicaLease>> replicas) {
  auto lease = std::make_unique<SlabLease>();
  FARPAGE_CHECK(!replicas.empty() && replicas.size() <= lease->replicas.size(), "%zu replicas",
                replicas.size());
  const MutexLock lock(mutex_);
  for (std::unique_ptr<const ReplicaLease>& replica : replicas) {
    lease->replicas[lease->replica_count++] = replica.get();
    replicas_.push_back(std::move(replica));
  }
  entry(slab).lease.store(lease.get(), std::memory_order_release);
  published_.push_back(std::move(lease));
}

bool LeaseMap::replace(SlabIndex slab, const ReplicaLease& old,
                       std::unique_ptr<const ReplicaLease> by) {
  const MutexLock lock(mutex_);
  const SlabLease* present = entry(slab).lease.load(std::memory_order_relaxed);
  if (present == nullptr) return false;
  auto lease = std::make_unique<SlabLease>(*present);
  const auto end = lease->replicas.begin() + lease->replica_count;
  const auto place = std::find(lease->replicas.begin(), end, &old);
  if (place == end) return false;
  *place = by.get();
  if (std::none_of(lease->replicas.begin(), end,
                   [](const ReplicaLease* r) { return r->is_read(); }))
    return false;
  replicas_.push_back(std::move(by));
  entry(slab).lease.store(lease.get(), std::memory_order_release);
  published_.push_back(std::move(lease));
  (void)old.end(ReplicaState::kWithdrawn);
  return true;
}

bool LeaseMap::touch(PageIndex page) {
  const SlabIndex slab = slab_of(page);
  std::atomic<uint8_t>& touched = entry(slab).touched;
  if (touched.load(std::memory_order_relaxed) != 0) return false;
  if (touched.exchange(1, std::memory_order_relaxed) != 0) return false;
  uint64_t highest = touched_slabs_.load(std::memory_order_relaxed);
  while (highest <= slab.value && !touched_slabs_.compare_exchange_weak(highest, slab.value + 1U)) {
  }
  return true;
}

std::vector<SlabIndex> LeaseMap::wanted(size_t limit) const {
  std::vector<SlabIndex> slabs;
  const uint64_t end = touched_slabs_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < end && slabs.size() < limit; ++i) {
    const Entry& candidate = entry(SlabIndex{i});
    if (candidate.touched.load(std::memory_order_relaxed) != 0 &&
        candidate.lease.load(std::memory_order_relaxed) == nullptr)
      slabs.push_back(SlabIndex{i});
  }
  return slabs;
}

}  // namespace farpage::pager
