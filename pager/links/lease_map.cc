#include "pager/links/lease_map.h"

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

void LeaseMap::publish(SlabIndex slab, std::unique_ptr<SlabLease> lease) {
  const std::lock_guard lock(mutex_);
  entry(slab).lease.store(lease.get(), std::memory_order_release);
  published_.push_back(std::move(lease));
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
