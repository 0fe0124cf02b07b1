#include "pager/pages/slot_hashes.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <random>
#include <utility>

namespace farpage::pager {

Result<SlotHashes> SlotHashes::create(uint64_t pages) {
  FARPAGE_TRY(memory, Mapping::anonymous(pages * sizeof(uint64_t)));
  std::random_device random;
  return SlotHashes(std::move(memory), (uint64_t{random()} << 32) | random());
}

uint64_t SlotHashes::hash(BackingId backing_region, std::span<const std::byte> page) const {
  const uint64_t hash =
      XXH3_64bits_withSeed(page.data(), page.size(), seed_ + backing_region.value);
  return hash != 0 ? hash : 1;
}

bool SlotHashes::holds(PageIndex page, uint64_t hash) {
  const uint64_t known = hashes()[page.value];
  if (known == 0) return false;
  const bool same = known == hash;
  unchanged_ += same ? 1 : 0;
  if (++tested_ == kMemory) {
    tested_ /= 2;
    unchanged_ /= 2;
  }
  return same;
}

}  // namespace farpage::pager
