// PageMap: for each page of an image what it holds and where that is stored.
//
// An image stores its pages densely, in the order of their numbers, in the slots of its region:
// slot s is page s of the region. An image with a base stores those that differ; the entries of the
// others name a slot of an earlier generation, so one map is enough for a reader. The map itself
// follows the slots, from the next page on, in the form of encode().
//
// Each stored page has a checksum: XXH3, 64 bits, seed 0 (Collet, xxhash.com). The digest of an
// image is SHA-256 over the number of its pages and the checksum of each (0: zeros). So it depends
// on nothing but the content, and protects the map: whoever has the digest finds out a map that was
// damaged at a node, but for the places, and a wrong place has another checksum.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/mapping.h"
#include "base/result.h"
#include "base/strong.h"

namespace farpage::image {

// Of a page that is not zeros; never 0. As pager::SlotChecksums with this seed.
inline constexpr uint64_t kChecksumSeed = 0;
uint64_t checksum_of(std::span<const std::byte> page);
bool is_zero(std::span<const std::byte> page);

// One page of an image. As it is stored, in the order of bytes of x86-64.
struct PageEntry {
  uint64_t checksum = 0;    // 0: the page is zeros, and stored nowhere
  uint32_t slot = 0;        // in the region of its generation
  uint32_t generation = 0;  // 0: the image itself, 1: its base, ..

  bool is_stored() const { return checksum != 0; }
  bool operator==(const PageEntry&) const = default;
};
static_assert(sizeof(PageEntry) == 16);

// Threads: any may read; one writes, before.
class PageMap {
 public:
  // All zeros.
  static Result<PageMap> create(uint64_t pages);
  // Takes what encode() has left, of an image with these stored pages in each of its generations.
  // kInvalid: the digest is another, or a place is outside.
  static Result<PageMap> decode(Mapping bytes, uint64_t pages,
                                std::span<const uint64_t> stored_pages, const std::string& digest);
  // The pages of the region that a map of so many pages takes.
  static uint64_t encoded_pages(uint64_t pages) {
    return (pages * sizeof(PageEntry) + kPageBytes - 1) >> kPageShift;
  }
  // Whole pages.
  std::span<const std::byte> encode() const { return memory_.bytes(); }

  uint64_t pages() const { return pages_; }
  const PageEntry& operator[](uint64_t page) const { return entries()[page]; }
  void set(uint64_t page, const PageEntry& entry) { entries()[page] = entry; }
  // 64 lower-case hexadecimal digits.
  std::string digest() const;

 private:
  PageMap(Mapping memory, uint64_t pages) : memory_(std::move(memory)), pages_(pages) {}
  PageEntry* entries() const { return reinterpret_cast<PageEntry*>(memory_.data()); }

  Mapping memory_;
  uint64_t pages_;
};

}  // namespace farpage::image
