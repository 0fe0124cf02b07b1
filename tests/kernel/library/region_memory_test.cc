// Containers whose elements are far.
#include <algorithm>
#include <map>
#include <memory_resource>
#include <random>
#include <string>
#include <vector>

#include "small_region.h"

namespace farpage {
namespace {

TEST(RegionMemory, AVectorLargerThanTheBudgetIsSorted) {
  Region region = make_region();
  RegionMemory memory(region);
  std::pmr::vector<uint64_t> numbers(&memory);
  numbers.reserve(uint64_t{6} << 17);  // 6 MiB of 8, of which 2 are local
  std::mt19937_64 random(1);
  uint64_t sum = 0;
  while (numbers.size() < numbers.capacity()) sum += numbers.emplace_back(random());
  std::sort(numbers.begin(), numbers.end());
  EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
  uint64_t sum_after = 0;
  for (const uint64_t number : numbers) sum_after += number;
  EXPECT_EQ(sum_after, sum);
  EXPECT_GT(region.stats().evicted_written, 0U);
}

TEST(RegionMemory, AMapOfStringsKeepsThemAll) {
  Region region = make_region();
  RegionMemory memory(region);
  std::pmr::map<uint64_t, std::pmr::string> strings(&memory);
  for (uint64_t i = 0; i < 20'000; ++i)
    strings.emplace(i, std::pmr::string(150, static_cast<char>('a' + i % 26)));
  for (uint64_t i = 0; i < 20'000; i += 2) strings.erase(i);
  for (const auto& [i, text] : strings)
    ASSERT_EQ(text, std::pmr::string(150, static_cast<char>('a' + i % 26))) << i;
  EXPECT_EQ(strings.size(), 10'000U);
  EXPECT_GT(region.stats().evicted_written, 0U);
}

TEST(RegionMemory, WhatIsFreedIsDiscardedAndNotSent) {
  RegionOptions options = small_options();
  options.prefetch_pages = 0;  // only touched pages are fetched
  Region region = make_region(options);
  RegionMemory memory(region);
  constexpr size_t kBytes = 1 << 20;  // half the budget
  for (int round = 0; round < 20; ++round) {
    auto* bytes = static_cast<unsigned char*>(memory.allocate(kBytes, 16));
    std::fill_n(bytes, kBytes, static_cast<unsigned char>(round + 1));
    memory.deallocate(bytes, kBytes, 16);
  }
  EXPECT_EQ(memory.stats().allocations, 0U);
  EXPECT_EQ(memory.stats().reserved_bytes, 0U);
  EXPECT_TRUE(eventually([&] { return region.stats().resident_bytes == 0; }));
  EXPECT_EQ(region.stats().evicted_written, 0U);
}

TEST(RegionMemory, NoRoomIsANullPointerOrBadAlloc) {
  Region region = make_region();
  RegionMemory memory(region);
  EXPECT_EQ(memory.try_allocate(region.bytes().size() + 1), nullptr);
  EXPECT_EQ(memory.try_allocate(16, 2 * kPage), nullptr);
  EXPECT_THROW((void)memory.allocate(region.bytes().size() + 1, 16), std::bad_alloc);
  void* all = memory.try_allocate(region.bytes().size());
  EXPECT_EQ(all, region.bytes().data());
  EXPECT_EQ(memory.try_allocate(1), nullptr);
  memory.deallocate(all, region.bytes().size(), alignof(std::max_align_t));
  EXPECT_NE(memory.try_allocate(1), nullptr);
}

TEST(RegionMemory, ManyThreadsAllocateAndFree) {
  constexpr uint64_t kSeed = 9;
  SCOPED_TRACE(kSeed);
  Region region = make_region();
  RegionMemory memory(region);
  std::vector<std::jthread> threads;
  for (uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&memory, t] {
      std::mt19937_64 random(kSeed + t);
      std::vector<std::pair<uint64_t*, size_t>> mine;
      for (int step = 0; step < 5000; ++step) {
        if (random() % 2 == 0) {
          const size_t words = 1 + random() % 2000;
          auto* block = static_cast<uint64_t*>(memory.try_allocate(words * 8));
          if (block == nullptr) continue;
          block[0] = block[words - 1] = t << 32 | words;
          mine.emplace_back(block, words);
        } else if (!mine.empty()) {
          std::swap(mine[random() % mine.size()], mine.back());
          const auto [block, words] = mine.back();
          mine.pop_back();
          ASSERT_EQ(block[0], t << 32 | words);
          ASSERT_EQ(block[words - 1], t << 32 | words);
          memory.deallocate(block, words * 8, alignof(std::max_align_t));
        }
      }
      for (const auto& [block, words] : mine)
        memory.deallocate(block, words * 8, alignof(std::max_align_t));
    });
  threads.clear();
  EXPECT_EQ(memory.stats().allocated_bytes, 0U);
}

}  // namespace
}  // namespace farpage
