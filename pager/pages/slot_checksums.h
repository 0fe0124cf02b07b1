// SlotChecksums: for each slot of a backing region the checksum of the bytes that every replica in
// use has there. It serves twice: what is READ must have it, and a victim that is Dirty and has it
// need not be written (it was installed writable on a guess, or written with what it had).
//
// 64 bits of XXH3 (Collet, xxhash.com) with a random seed of the region: other bytes have the same
// checksum with a probability of 2^-64, also those that somebody has chosen. It is of the page, as
// it is sent: nodes store no compressed pages.
//
// The table is in memory that may survive this process. Processes that read from the region after a
// fork, and a successor, find what the writer has left.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <utility>

#include "base/mapping.h"
#include "base/result.h"
#include "base/strong.h"

namespace farpage::pager {

// Threads: set() and forget() by the one that evicts, for a slot that it alone refers to; the rest
// by any. Who has seen that a page is Remote (PageTable::load()) sees what was set before.
// Invariants:
//  1. known() is not 0 only while every replica that is read has these bytes, or had them and was
//     damaged: set() follows the acknowledgement of each, forget() precedes the next WRITE;
//  2. a slot that a Remote or Clean page refers to has a checksum, if the engine makes them; stored
//     pages (stored_pages.h) have others.
class SlotChecksums {
 public:
  static size_t memory_bytes(uint64_t pages) {
    return sizeof(Head) + pages * sizeof(std::atomic<uint64_t>);
  }
  // In `memory`, of memory_bytes(): zeros, or what a dead process has left there.
  explicit SlotChecksums(Mapping memory);
  // In zeros, for pages that were written with the checksums of that seed.
  SlotChecksums(Mapping memory, uint64_t seed) : memory_(std::move(memory)), seed_(seed) {}

  // Of a page's bytes; never 0.
  uint64_t of(std::span<const std::byte> page) const;
  // 0: none, because nothing was written there, or a WRITE may have failed.
  uint64_t known(PageIndex page) const {
    return checksums()[page.value].load(std::memory_order_relaxed);
  }
  // Whether these are the bytes of the slot. Nothing is known of a slot without a checksum.
  bool match(PageIndex page, std::span<const std::byte> bytes) const {
    const uint64_t checksum = known(page);
    return checksum == 0 || checksum == of(bytes);
  }
  void set(PageIndex page, uint64_t checksum) {
    checksums()[page.value].store(checksum, std::memory_order_relaxed);
  }
  void forget(PageIndex page) {
    if (known(page) != 0) set(page, 0);
  }

 private:
  struct alignas(64) Head {
    std::atomic<uint64_t> seed;  // 0: not chosen yet
  };
  Head& head() const { return *reinterpret_cast<Head*>(memory_.data()); }
  std::atomic<uint64_t>* checksums() const {
    return reinterpret_cast<std::atomic<uint64_t>*>(memory_.data() + sizeof(Head));
  }

  Mapping memory_;  // touched only where pages are written back
  uint64_t seed_;
};

}  // namespace farpage::pager
