// SlotHashes: for each page a hash of the bytes that were last written to its slot. A victim that
// is Dirty and has these bytes need not be written again: it was installed writable and not
// written, or written with what it had.
//
// 64 bits of XXH3 with a random seed. The slots of a target are written by nobody else, so what it
// wrote last is what they hold (backing_region.h).
#pragma once

#include <cstdint>
#include <span>

#include "base/mapping.h"
#include "base/result.h"
#include "base/strong.h"
#include "pager/pages/page_state.h"

namespace farpage::pager {

// Threads: one at a time, but for hash(): any.
class SlotHashes {
 public:
  static Result<SlotHashes> create(uint64_t pages);

  // Of a page's bytes in its slot of that backing region; never 0.
  uint64_t hash(BackingId backing_region, std::span<const std::byte> page) const;
  // 0: not known.
  uint64_t of(PageIndex page) const { return hashes()[page.value]; }
  // Every replica has acknowledged bytes with this hash.
  void set(PageIndex page, uint64_t hash) { hashes()[page.value] = hash; }
  // The slot is about to be written.
  void forget(PageIndex page) {
    if (of(page) != 0) set(page, 0);
  }

 private:
  SlotHashes(Mapping memory, uint64_t seed) : memory_(std::move(memory)), seed_(seed) {}
  uint64_t* hashes() const { return reinterpret_cast<uint64_t*>(memory_.data()); }

  Mapping memory_;  // zeroed; touched only where pages are written back
  uint64_t seed_;
};

}  // namespace farpage::pager
