// AddressIndex: which page of an image is that of a process and an address. The image of a
// checkpoint begins with its index; the pages follow.
//
// As it is stored, in whole pages, in the order of bytes of x86-64: a header of 32 bytes, then
// ranges of 32 bytes, sorted by process and address.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/strong.h"

namespace farpage::criu {

// 2 pages of the index for each MiB of memory at the worst.
inline constexpr uint64_t kMaxIndexRanges = uint64_t{1} << 24;

// Consecutive pages of a process that lie one after the other in the image.
struct IndexedRange {
  uint64_t process = 0;  // its pid in the checkpoint
  uint64_t address = 0;
  uint64_t pages = 0;
  uint64_t first_page = 0;  // of the image

  uint64_t end() const { return address + (pages << kPageShift); }
  bool operator==(const IndexedRange&) const = default;
};
static_assert(sizeof(IndexedRange) == 32);

// Threads: any may read.
class AddressIndex {
 public:
  // Of the page that find() was asked for, and those behind it in its range.
  struct Place {
    uint64_t page = 0;   // of the image
    uint64_t pages = 0;  // at least 1
  };

  // For ranges in this order, whose pages follow the index one after the other; `first_page` is
  // set here. Neighbours are joined. kInvalid: not sorted, or more than kMaxIndexRanges.
  static Result<AddressIndex> create(std::span<const IndexedRange> ranges);

  // The pages of the index of which this is the first. kInvalid: it is no index.
  static Result<uint64_t> pages_of(std::span<const std::byte> first_page, uint64_t image_pages);
  // Takes what encode() has left. kInvalid: a range is outside of the image, or not in its order.
  static Result<AddressIndex> decode(std::span<const std::byte> bytes, uint64_t image_pages);
  // Whole pages.
  std::vector<std::byte> encode() const;

  std::optional<Place> find(uint64_t process, uint64_t address) const;

  const std::vector<IndexedRange>& ranges() const { return ranges_; }
  uint64_t pages() const;          // of the index itself
  uint64_t indexed_pages() const;  // of all ranges
  uint64_t processes() const;

 private:
  explicit AddressIndex(std::vector<IndexedRange> ranges) : ranges_(std::move(ranges)) {}

  std::vector<IndexedRange> ranges_;
};

}  // namespace farpage::criu
