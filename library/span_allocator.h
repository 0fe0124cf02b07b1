// SpanAllocator: which bytes of a span are allocated. It uses only offsets and never touches the
// span.
//
// Small requests have size classes, four to each power of two (as jemalloc, Evans 2006), in chunks
// of 16 pages that hold one class each and one bit for each slot. Large ones are runs of whole
// pages, best fit; free neighbours are merged.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/strong.h"

namespace farpage::library {

// A run of pages of the span.
struct Extent {
  uint64_t first_page = 0;
  uint64_t pages = 0;
};

// Threads: one at a time.
// Invariants:
//  1. no byte belongs to two allocations, or to one and a free extent;
//  2. no two free extents are adjacent;
//  3. a chunk without a taken slot exists only while it is the only one of its class with room.
class SpanAllocator {
 public:
  static constexpr uint64_t kSmallestClass = 16;
  static constexpr uint64_t kLargestClass = 16 << 10;
  static constexpr uint64_t kChunkPages = 16;

  explicit SpanAllocator(uint64_t pages);

  // The offset of the first byte. nullopt: no room, or an alignment above a page. 0 bytes count
  // as 1. `alignment` is a power of two.
  std::optional<uint64_t> allocate(uint64_t bytes, uint64_t alignment);

  // Ends an allocation; the arguments are those of allocate(). Returns the pages that are now
  // empty, if any: they stay allocated until give_back(), so that the caller can discard their
  // content first.
  std::optional<Extent> release(uint64_t offset, uint64_t bytes, uint64_t alignment);
  void give_back(Extent extent);

  uint64_t allocated_bytes() const { return allocated_bytes_; }
  uint64_t allocations() const { return allocations_; }
  uint64_t reserved_bytes() const { return reserved_pages_ << kPageShift; }

  // The class of a request; nullopt: a large one. For tests.
  static std::optional<uint64_t> class_bytes_of(uint64_t bytes, uint64_t alignment);

 private:
  static constexpr size_t kClasses = 48;

  struct Chunk {
    uint64_t slot_bytes = 0;
    uint32_t slots = 0;
    uint32_t taken = 0;
    std::vector<uint64_t> taken_bits;
  };

  static size_t class_index(uint64_t class_bytes);
  std::optional<uint64_t> take_pages(uint64_t pages);
  std::optional<uint64_t> take_slot(uint64_t class_bytes);
  std::optional<Extent> free_slot(uint64_t offset, uint64_t class_bytes);
  void insert_free(Extent extent);
  void erase_free(std::map<uint64_t, uint64_t>::iterator extent);

  std::map<uint64_t, uint64_t> free_by_place_;                 // first page -> pages
  std::set<std::pair<uint64_t, uint64_t>> free_by_size_;       // {pages, first page}
  std::map<uint64_t, Chunk> chunks_;                           // by first page
  std::array<std::set<uint64_t>, kClasses> chunks_with_room_;  // first pages, by class
  uint64_t allocated_bytes_ = 0;
  uint64_t allocations_ = 0;
  uint64_t reserved_pages_ = 0;
};

}  // namespace farpage::library
