#include "pager/links/lease_map.h"

#include <algorithm>
#include <bit>
#include <map>
#include <new>

#include "base/check.h"
#include "pager/links/stored_pages.h"

namespace farpage::pager {

namespace {

unsigned shift_of(uint64_t slab_bytes) {
  FARPAGE_CHECK(std::has_single_bit(slab_bytes), "slab of %llu bytes",
                static_cast<unsigned long long>(slab_bytes));
  return static_cast<unsigned>(std::countr_zero(slab_bytes)) - kPageShift;
}

uint64_t slabs_for(uint64_t pages, uint64_t slab_bytes) {
  const unsigned shift = shift_of(slab_bytes);
  return (pages + (uint64_t{1} << shift) - 1) >> shift;
}

}  // namespace

LeaseMap::LeaseMap(Mapping memory, Mapping kept, SlotChecksums checksums, uint64_t slabs,
                   unsigned shift)
    : memory_(std::move(memory)),
      kept_(std::move(kept)),
      checksums_(std::move(checksums)),
      slabs_(slabs),
      pages_per_slab_shift_(shift) {
  find_kept();
}

// A page that is stored nowhere is never asked for.
PageIndex LeaseMap::place_of_stored(PageIndex page) const {
  return stored_->place_of(page).value_or(PageIndex{0});
}

bool LeaseMap::is_right_of_stored(PageIndex page, std::span<const std::byte> bytes) const {
  return stored_->is_right(page, bytes);
}

// Each replica of a slab may be replaced many times: whenever a node is drained, for years. What is
// not used has no pages.
uint64_t LeaseMap::most_records(uint64_t slabs) {
  constexpr uint64_t kLivesOfAReplica = 32;
  constexpr uint64_t kMore = 4096;
  return slabs * coordinator::kMaxReplicas * kLivesOfAReplica + kMore;
}

size_t LeaseMap::kept_bytes(uint64_t pages, uint64_t slab_bytes) {
  return kCacheLine + most_records(slabs_for(pages, slab_bytes)) * sizeof(Record);
}

size_t LeaseMap::checksums_bytes(uint64_t pages, uint64_t slab_bytes) {
  return SlotChecksums::memory_bytes(slabs_for(pages, slab_bytes) << shift_of(slab_bytes));
}

Result<std::unique_ptr<LeaseMap>> LeaseMap::create(uint64_t pages, uint64_t slab_bytes) {
  FARPAGE_TRY(kept, Mapping::anonymous(kept_bytes(pages, slab_bytes)));
  FARPAGE_TRY(checksums, Mapping::anonymous(checksums_bytes(pages, slab_bytes)));
  return create(pages, slab_bytes, std::move(kept), SlotChecksums(std::move(checksums)));
}

Result<std::unique_ptr<LeaseMap>> LeaseMap::create(uint64_t pages, uint64_t slab_bytes,
                                                   Mapping kept, SlotChecksums checksums) {
  const uint64_t slabs = slabs_for(pages, slab_bytes);
  FARPAGE_TRY(entries, Mapping::anonymous(slabs * sizeof(Entry)));
  return std::unique_ptr<LeaseMap>(new LeaseMap(std::move(entries), std::move(kept),
                                                std::move(checksums), slabs, shift_of(slab_bytes)));
}

// The leases that a dead process has published. What was being filled has missed pages, and is not
// filled any more.
void LeaseMap::find_kept() {
  const MutexLock lock(mutex_);
  const uint64_t count = head().count.load(std::memory_order_acquire);
  std::map<uint32_t, std::unique_ptr<SlabLease>> leases;
  for (uint64_t i = 0; i < count; ++i) {
    const Record& record = records()[i];
    std::unique_ptr<SlabLease>& lease = leases[record.slab];
    if (!lease) lease = std::make_unique<SlabLease>();
    lease->replicas.at(record.place) = &record.lease;
    lease->replica_count = std::max(lease->replica_count, record.place + 1);
  }
  for (auto& [slab, lease] : leases) {
    for (uint32_t i = 0; i < lease->replica_count; ++i)
      if (!lease->replicas[i]->is_read()) (void)lease->replicas[i]->end(ReplicaState::kLost);
    (void)touch(PageIndex{uint64_t{slab} << pages_per_slab_shift_});
    store(SlabIndex{slab}, std::move(lease));
  }
}

const ReplicaLease* LeaseMap::keep(uint64_t record, SlabIndex slab, uint32_t place,
                                   const ReplicaLease& replica) {
  Record& kept = *new (&records()[record]) Record{slab.value, place, replica};
  kept.lease.since = SteadyClock::read();
  return &kept.lease;
}

bool LeaseMap::withdraw(const ReplicaLease& old, const ReplicaLease& by) {
  const MutexLock lock(mutex_);
  if (!by.is_read()) return false;
  (void)old.end(ReplicaState::kWithdrawn);
  return true;
}

bool LeaseMap::give_up(const ReplicaLease& replica, const ReplicaLease& other) const {
  const MutexLock lock(mutex_);
  return other.is_read() && replica.end(ReplicaState::kLost);
}

void LeaseMap::store(SlabIndex slab, std::unique_ptr<const SlabLease> lease) {
  if (entry(slab).lease.load(std::memory_order_relaxed) == nullptr) ++published_slabs_;
  entry(slab).lease.store(lease.get(), std::memory_order_release);
  published_.push_back(std::move(lease));
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
  const uint64_t count = head().count.load(std::memory_order_relaxed);
  FARPAGE_CHECK(count + replicas.size() <= most_records(slabs_), "%llu leases",
                static_cast<unsigned long long>(count));
  for (const std::unique_ptr<const ReplicaLease>& replica : replicas) {
    const uint32_t place = lease->replica_count++;
    lease->replicas[place] = keep(count + place, slab, place, *replica);
  }
  head().count.store(count + replicas.size(), std::memory_order_release);
  store(slab, std::move(lease));
}

const ReplicaLease* LeaseMap::add(SlabIndex slab, const ReplicaLease& replica) {
  const MutexLock lock(mutex_);
  const SlabLease* present = entry(slab).lease.load(std::memory_order_relaxed);
  const uint64_t count = head().count.load(std::memory_order_relaxed);
  if (present == nullptr || !may_add(count)) return nullptr;
  if (present->live() == 0 && !replica.is_read()) return nullptr;
  auto lease = std::make_unique<SlabLease>(*present);
  uint32_t place = 0;
  while (place < lease->replica_count && lease->replicas[place]->is_written()) ++place;
  if (place == SlabLease::kMaxPlaces) return nullptr;
  const ReplicaLease* added = lease->replicas[place] = keep(count, slab, place, replica);
  lease->replica_count = std::max(lease->replica_count, place + 1);
  head().count.store(count + 1, std::memory_order_release);
  store(slab, std::move(lease));
  return added;
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

uint64_t LeaseMap::leased_slabs() const {
  uint64_t leased = 0;
  const uint64_t end = touched_slabs_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < end; ++i)
    if (entry(SlabIndex{i}).lease.load(std::memory_order_relaxed) != nullptr) ++leased;
  return leased;
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
