// SlotHashes: for each page a hash of the bytes that its slot holds. A victim that is Dirty and has
// these bytes need not be written: it was installed writable on a guess and not written, or written
// with what it had.
//
// 64 bits of XXH3 (Collet, xxhash.com) with a random seed: another page has the same hash with a
// probability of 2^-64. The slots of a target are written by nobody else (backing_region.h), so
// they hold what it wrote last. Who makes a replica anew must fill all its slots, also those of
// Dirty pages.
//
// A hash costs 0.3 us, of a page in the cache. Where few pages are unchanged, only one in
// eight is hashed, always the same ones, which show when that changes.
#pragma once

#include <cstdint>
#include <span>

#include "base/mapping.h"
#include "base/result.h"
#include "pager/pages/page_state.h"

namespace farpage::pager {

// Threads: one at a time.
class SlotHashes {
 public:
  static Result<SlotHashes> create(uint64_t pages);

  // Is this page worth a hash now?
  bool wants(PageIndex page) const {
    return is_sample(page) || tested_ < kFirst || unchanged_ * kOneIn > tested_;
  }
  // Of a page's bytes, for its slot in that backing region; never 0.
  uint64_t hash(BackingId backing_region, std::span<const std::byte> page) const;
  // Has the slot of the page bytes with this hash?
  bool holds(PageIndex page, uint64_t hash);
  // Every replica has acknowledged bytes with this hash.
  void set(PageIndex page, uint64_t hash) { hashes()[page.value] = hash; }
  // The slot is about to be written.
  void forget(PageIndex page) {
    if (hashes()[page.value] != 0) set(page, 0);
  }

 private:
  static constexpr uint32_t kSampleBits = 3;
  static constexpr uint32_t kFirst = 64;    // hashes that are compared before the first choice
  static constexpr uint32_t kOneIn = 16;    // unchanged: worth it
  static constexpr uint32_t kMemory = 512;  // then both counts are halved

  SlotHashes(Mapping memory, uint64_t seed) : memory_(std::move(memory)), seed_(seed) {}
  // Scattered, so that strides do not matter.
  static bool is_sample(PageIndex page) {
    return (page.value * 0x9E3779B97F4A7C15U) >> (64 - kSampleBits) == 0;
  }
  uint64_t* hashes() const { return reinterpret_cast<uint64_t*>(memory_.data()); }

  Mapping memory_;  // zeroed, 0: not known; touched only where pages are written back
  uint64_t seed_;
  uint32_t tested_ = 0, unchanged_ = 0;
};

}  // namespace farpage::pager
