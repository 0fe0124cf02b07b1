#include "pager/pages/slot_checksums.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <utility>

#include "base/host.h"

namespace farpage::pager {

SlotChecksums::SlotChecksums(Mapping memory)
    : memory_(std::move(memory)), seed_(head().seed.load(std::memory_order_relaxed)) {
  if (seed_ != 0) return;
  seed_ = random_u64() | 1;
  head().seed.store(seed_, std::memory_order_relaxed);
}

uint64_t SlotChecksums::of(std::span<const std::byte> page) const {
  const uint64_t checksum = XXH3_64bits_withSeed(page.data(), page.size(), seed_);
  return checksum != 0 ? checksum : 1;
}

}  // namespace farpage::pager
