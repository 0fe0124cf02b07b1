// Pagemap: which pages of one process a checkpoint of criu has: the file pagemap-PID.img.
//
// The file: two magic numbers of 32 bits, then records: a length of 32 bits and a message of
// protobuf. The first record names the file of the pages, pages-N.img; each other one is a range
// of addresses. The pages of the ranges that are present lie in pages-N.img in this order.
// Source: criu 3.17.1 and 4.2, images/pagemap.proto, criu/include/magic.h, criu/include/pagemap.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace farpage::criu {

// The largest file: some 10 million ranges.
inline constexpr size_t kMaxPagemapBytes = size_t{256} << 20;
// User addresses of x86-64 end here, with 5 levels of page tables.
inline constexpr uint64_t kMaxAddress = uint64_t{1} << 56;

// Bits of PagemapRange::flags.
inline constexpr uint32_t kInParent = 1;  // the pages are in another checkpoint
inline constexpr uint32_t kLazy = 2;      // criu lazy-pages can bring them after the restore
inline constexpr uint32_t kPresent = 4;   // the pages are in the file of the pages

struct PagemapRange {
  uint64_t address = 0;
  uint64_t pages = 0;
  uint32_t flags = 0;

  bool is(uint32_t flag) const { return (flags & flag) != 0; }
  // What a page server is asked for.
  bool is_served() const { return is(kLazy); }
  uint64_t end() const;
  bool operator==(const PagemapRange&) const = default;
};

struct Pagemap {
  uint32_t pages_file = 0;           // N of pages-N.img
  std::vector<PagemapRange> ranges;  // sorted by address, without overlaps

  uint64_t present_pages() const;
  bool operator==(const Pagemap&) const = default;
};

// kInvalid names the record, its place in the file, and what is wrong.
Result<Pagemap> decode_pagemap(std::span<const std::byte> file);
std::vector<std::byte> encode_pagemap(const Pagemap& pagemap);

}  // namespace farpage::criu
