#include "library/span_allocator.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace farpage::library {
namespace {

uint64_t pages_of(uint64_t bytes) {
  return (bytes >> kPageShift) + ((bytes & (kPageBytes - 1)) != 0 ? 1 : 0);
}

}  // namespace

SpanAllocator::SpanAllocator(uint64_t pages) {
  if (pages > 0) insert_free({0, pages});
}

std::optional<uint64_t> SpanAllocator::class_bytes_of(uint64_t bytes, uint64_t alignment) {
  bytes = std::max<uint64_t>(bytes, 1);
  if (bytes > kLargestClass || alignment > kLargestClass) return std::nullopt;
  // A slot is at a multiple of its class, so a power-of-two class has all alignments up to itself.
  if (alignment > kSmallestClass) return std::bit_ceil(std::max(bytes, alignment));
  if (bytes <= 4 * kSmallestClass)
    return (bytes + kSmallestClass - 1) / kSmallestClass * kSmallestClass;
  const uint64_t step = std::bit_ceil(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

size_t SpanAllocator::class_index(uint64_t class_bytes) {
  if (class_bytes <= 4 * kSmallestClass) return class_bytes / kSmallestClass - 1;
  // Four classes to each power of two: 80, 96, 112, 128, 160, ...
  const uint64_t octave = std::bit_ceil(class_bytes);
  const auto octaves =
      static_cast<size_t>(std::countr_zero(octave) - std::countr_zero(8 * kSmallestClass));
  return 4 + octaves * 4 + static_cast<size_t>((class_bytes - octave / 2) / (octave / 8) - 1);
}

std::optional<uint64_t> SpanAllocator::allocate(uint64_t bytes, uint64_t alignment) {
  if (alignment > kPageBytes) return std::nullopt;
  const std::optional<uint64_t> small = class_bytes_of(bytes, alignment);
  std::optional<uint64_t> offset;
  if (small) {
    offset = take_slot(*small);
  } else if (const auto page = take_pages(pages_of(bytes))) {
    offset = *page << kPageShift;
  }
  if (!offset) return std::nullopt;
  allocated_bytes_ += bytes;
  ++allocations_;
  return offset;
}

std::optional<Extent> SpanAllocator::release(uint64_t offset, uint64_t bytes, uint64_t alignment) {
  FARPAGE_CHECK(allocations_ > 0 && allocated_bytes_ >= bytes,
                "offset %llu of %llu bytes was not allocated",
                static_cast<unsigned long long>(offset), static_cast<unsigned long long>(bytes));
  allocated_bytes_ -= bytes;
  --allocations_;
  if (const auto small = class_bytes_of(bytes, alignment)) return free_slot(offset, *small);
  return Extent{offset >> kPageShift, pages_of(bytes)};
}

void SpanAllocator::give_back(Extent extent) {
  reserved_pages_ -= extent.pages;
  insert_free(extent);
}

std::optional<uint64_t> SpanAllocator::take_pages(uint64_t pages) {
  const auto best = free_by_size_.lower_bound({pages, 0});
  if (best == free_by_size_.end()) return std::nullopt;
  const Extent extent{best->second, best->first};
  erase_free(free_by_place_.find(extent.first_page));
  if (extent.pages > pages) insert_free({extent.first_page + pages, extent.pages - pages});
  reserved_pages_ += pages;
  return extent.first_page;
}

std::optional<uint64_t> SpanAllocator::take_slot(uint64_t class_bytes) {
  std::set<uint64_t>& with_room = chunks_with_room_[class_index(class_bytes)];
  if (with_room.empty()) {
    const std::optional<uint64_t> first = take_pages(kChunkPages);
    if (!first) return std::nullopt;
    const auto slots = static_cast<uint32_t>((kChunkPages << kPageShift) / class_bytes);
    chunks_[*first] = Chunk{.slot_bytes = class_bytes,
                            .slots = slots,
                            .taken = 0,
                            .taken_bits = std::vector<uint64_t>((slots + 63) / 64)};
    with_room.insert(*first);
  }
  // The lowest chunk, so that the others become empty and their pages can be discarded.
  const uint64_t first = *with_room.begin();
  Chunk& chunk = chunks_.at(first);
  uint32_t slot = 0;
  for (size_t word = 0; word < chunk.taken_bits.size(); ++word) {
    if (chunk.taken_bits[word] == ~uint64_t{0}) continue;
    const auto bit = static_cast<uint32_t>(std::countr_one(chunk.taken_bits[word]));
    slot = static_cast<uint32_t>(word) * 64 + bit;
    chunk.taken_bits[word] |= uint64_t{1} << bit;
    break;
  }
  if (++chunk.taken == chunk.slots) with_room.erase(first);
  return (first << kPageShift) + slot * class_bytes;
}

std::optional<Extent> SpanAllocator::free_slot(uint64_t offset, uint64_t class_bytes) {
  const auto after = chunks_.upper_bound(offset >> kPageShift);
  FARPAGE_CHECK(after != chunks_.begin(), "offset %llu is in no chunk",
                static_cast<unsigned long long>(offset));
  const auto entry = std::prev(after);
  const uint64_t first = entry->first;
  Chunk& chunk = entry->second;
  const uint64_t inside = offset - (first << kPageShift);
  const uint64_t slot = inside / class_bytes;
  const uint64_t bit = uint64_t{1} << (slot % 64);
  FARPAGE_CHECK(chunk.slot_bytes == class_bytes && inside % class_bytes == 0 &&
                    slot < chunk.slots && (chunk.taken_bits[slot / 64] & bit) != 0,
                "offset %llu is no allocation of %llu bytes",
                static_cast<unsigned long long>(offset),
                static_cast<unsigned long long>(class_bytes));
  chunk.taken_bits[slot / 64] &= ~bit;
  std::set<uint64_t>& with_room = chunks_with_room_[class_index(class_bytes)];
  with_room.insert(first);
  if (--chunk.taken > 0 || with_room.size() == 1) return std::nullopt;
  with_room.erase(first);
  chunks_.erase(entry);
  return Extent{first, kChunkPages};
}

void SpanAllocator::insert_free(Extent extent) {
  auto next = free_by_place_.lower_bound(extent.first_page);
  if (next != free_by_place_.end() && extent.first_page + extent.pages == next->first) {
    extent.pages += next->second;
    const auto merged = next++;
    erase_free(merged);
  }
  if (next != free_by_place_.begin()) {
    const auto former = std::prev(next);
    if (former->first + former->second == extent.first_page) {
      extent = {former->first, former->second + extent.pages};
      erase_free(former);
    }
  }
  free_by_place_[extent.first_page] = extent.pages;
  free_by_size_.insert({extent.pages, extent.first_page});
}

void SpanAllocator::erase_free(std::map<uint64_t, uint64_t>::iterator extent) {
  free_by_size_.erase({extent->second, extent->first});
  free_by_place_.erase(extent);
}

}  // namespace farpage::library
