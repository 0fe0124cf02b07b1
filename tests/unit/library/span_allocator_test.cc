#include "library/span_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace farpage::library {
namespace {

constexpr uint64_t kPages = 4096;

// Ends an allocation and makes its pages free again.
void free_now(SpanAllocator& allocator, uint64_t offset, uint64_t bytes, uint64_t alignment) {
  if (const auto unused = allocator.release(offset, bytes, alignment)) allocator.give_back(*unused);
}

TEST(SpanAllocator, AClassIsNeverSmallerThanAskedAndAtMostAQuarterLarger) {
  for (uint64_t bytes = 0; bytes <= SpanAllocator::kLargestClass; ++bytes) {
    const auto class_bytes = SpanAllocator::class_bytes_of(bytes, 1);
    ASSERT_TRUE(class_bytes) << bytes;
    EXPECT_GE(*class_bytes, bytes);
    EXPECT_LE(*class_bytes, std::max({SpanAllocator::kSmallestClass, bytes + 15, bytes * 5 / 4}))
        << bytes;
    EXPECT_EQ(*class_bytes % SpanAllocator::kSmallestClass, 0U);
  }
  EXPECT_FALSE(SpanAllocator::class_bytes_of(SpanAllocator::kLargestClass + 1, 1));
}

TEST(SpanAllocator, OffsetsAreAlignedAsAsked) {
  SpanAllocator allocator(kPages);
  for (const uint64_t bytes : {1, 17, 100, 3000, 20'000})
    for (uint64_t alignment = 1; alignment <= kPageBytes; alignment *= 2) {
      const auto offset = allocator.allocate(bytes, alignment);
      ASSERT_TRUE(offset) << bytes << " at " << alignment;
      EXPECT_EQ(*offset % alignment, 0U) << bytes << " at " << alignment;
    }
  EXPECT_FALSE(allocator.allocate(16, kPageBytes * 2));
}

// Checked against a map of the allocations: none overlap, and the freed pages merge in the end.
TEST(SpanAllocator, RandomAllocationsNeverOverlapAndAllPagesComeBack) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  SpanAllocator allocator(kPages);
  struct Taken {
    uint64_t bytes;
    uint64_t alignment;
  };
  std::map<uint64_t, Taken> taken;
  for (int step = 0; step < 50'000; ++step) {
    if (random() % 100 < 55) {
      const uint64_t bytes = uint64_t{1} << (random() % 19);
      const Taken wanted{bytes + random() % bytes, uint64_t{1} << (random() % 8)};
      const auto offset = allocator.allocate(wanted.bytes, wanted.alignment);
      if (!offset) continue;
      const auto [at, fresh] = taken.emplace(*offset, wanted);
      ASSERT_TRUE(fresh) << *offset;
      if (at != taken.begin()) {
        ASSERT_LE(std::prev(at)->first + std::prev(at)->second.bytes, *offset);
      }
      if (std::next(at) != taken.end()) {
        ASSERT_LE(*offset + wanted.bytes, std::next(at)->first);
      }
      ASSERT_LE(*offset + wanted.bytes, kPages << kPageShift);
    } else if (!taken.empty()) {
      auto at = taken.lower_bound(random() % (kPages << kPageShift));
      if (at == taken.end()) at = taken.begin();
      free_now(allocator, at->first, at->second.bytes, at->second.alignment);
      taken.erase(at);
    }
  }
  for (const auto& [offset, what] : taken) free_now(allocator, offset, what.bytes, what.alignment);
  EXPECT_EQ(allocator.allocations(), 0U);
  EXPECT_EQ(allocator.allocated_bytes(), 0U);
  // Each class may keep one chunk.
  const uint64_t kept = allocator.reserved_bytes() >> kPageShift;
  EXPECT_LE(kept, 48 * SpanAllocator::kChunkPages);
  uint64_t largest = kPages;
  while (largest > 0 && !allocator.allocate(largest << kPageShift, 1)) --largest;
  EXPECT_GT(largest, (kPages - kept) / 49);
}

TEST(SpanAllocator, FreedNeighboursAreOneExtentAgain) {
  constexpr uint64_t kBytes = 8 * kPageBytes;
  SpanAllocator allocator(64);
  std::vector<uint64_t> offsets;
  for (int i = 0; i < 8; ++i) offsets.push_back(*allocator.allocate(kBytes, 1));
  EXPECT_FALSE(allocator.allocate(kBytes, 1));
  for (const size_t i : {1, 5, 3, 4, 2}) free_now(allocator, offsets[i], kBytes, 1);
  EXPECT_EQ(allocator.allocate(5 * kBytes, 1), offsets[1]);
}

TEST(SpanAllocator, ASpanSmallerThanAChunkHasRoomForPagesOnly) {
  SpanAllocator allocator(8);
  EXPECT_FALSE(allocator.allocate(100, 1));
  EXPECT_TRUE(allocator.allocate(8 * kPageBytes, 1));
  EXPECT_FALSE(allocator.allocate(5 * kPageBytes, 1));
}

TEST(SpanAllocator, ReleasedPagesStayTakenUntilTheyAreGivenBack) {
  SpanAllocator allocator(16);
  const auto offset = allocator.allocate(16 * kPageBytes, 1);
  ASSERT_TRUE(offset);
  const auto unused = allocator.release(*offset, 16 * kPageBytes, 1);
  ASSERT_TRUE(unused);
  EXPECT_EQ(unused->pages, 16U);
  EXPECT_FALSE(allocator.allocate(5 * kPageBytes, 1));
  allocator.give_back(*unused);
  EXPECT_TRUE(allocator.allocate(5 * kPageBytes, 1));
}

TEST(SpanAllocator, AnEmptyChunkIsGivenBackWhenItsClassHasAnotherOne) {
  SpanAllocator allocator(64);
  constexpr uint64_t kBytes = 4096;
  std::vector<uint64_t> offsets;
  for (int i = 0; i < 32; ++i) offsets.push_back(*allocator.allocate(kBytes, 1));
  EXPECT_EQ(allocator.reserved_bytes(), 32 * kBytes);
  uint64_t pages = 0;
  for (const uint64_t offset : offsets)
    if (const auto unused = allocator.release(offset, kBytes, 1)) {
      pages += unused->pages;
      allocator.give_back(*unused);
    }
  EXPECT_EQ(pages, SpanAllocator::kChunkPages);
  EXPECT_EQ(allocator.reserved_bytes(), 16 * kBytes);
}

using SpanAllocatorDeathTest = testing::Test;
TEST(SpanAllocatorDeathTest, FreeingTwiceIsABug) {
  SpanAllocator allocator(64);
  const uint64_t first = *allocator.allocate(100, 1);
  (void)*allocator.allocate(100, 1);
  (void)allocator.release(first, 100, 1);
  EXPECT_DEATH((void)allocator.release(first, 100, 1), "is no allocation");
}

}  // namespace
}  // namespace farpage::library
