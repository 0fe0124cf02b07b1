#include "snapshot/page_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "base/strong.h"

namespace farpage::snapshot {
namespace {

using Found = PageCache::Found;

std::unique_ptr<PageCache> small_cache() {
  auto cache = PageCache::create(PageCache::kMinBytes);
  EXPECT_TRUE(cache.has_value());
  return std::move(*cache);
}

void write(PageCache& cache, PageCache::Frame frame, uint64_t value) {
  std::memcpy(cache.bytes_of(frame).data(), &value, sizeof value);
}

uint64_t read(const PageCache& cache, PageCache::Frame frame) {
  uint64_t value = 0;
  std::memcpy(&value, cache.bytes_of(frame).data(), sizeof value);
  return value;
}

TEST(PageCache, PageIsClaimedOnceAndThenThereForAll) {
  const auto cache = small_cache();
  const PageKey key{1, 7};
  const auto first = cache->find(key);
  ASSERT_EQ(first.found, Found::kClaimed);
  EXPECT_EQ(cache->find(key).found, Found::kComing);
  write(*cache, first.frame, 42);
  cache->fill(first.frame);
  cache->release(first.frame);
  const auto second = cache->find(key);
  ASSERT_EQ(second.found, Found::kReady);
  EXPECT_EQ(read(*cache, second.frame), 42U);
  cache->release(second.frame);
  EXPECT_EQ(cache->find({2, 7}).found, Found::kClaimed) << "another store";
  EXPECT_EQ(cache->find({1, 8}).found, Found::kClaimed) << "another slot";
  EXPECT_EQ(cache->counts().pages, 3U);
}

TEST(PageCache, AbandonedPageMayBeClaimedAgain) {
  const auto cache = small_cache();
  const auto first = cache->find({1, 7});
  cache->abandon(first.frame);
  EXPECT_EQ(cache->counts().pages, 0U);
  EXPECT_EQ(cache->find({1, 7}).found, Found::kClaimed);
}

TEST(PageCache, LookClaimsNothing) {
  const auto cache = small_cache();
  EXPECT_EQ(cache->look({1, 7}).found, Found::kNoRoom);
  EXPECT_EQ(cache->counts().pages, 0U);
}

TEST(PageCache, NeverHasMoreThanItsFramesAndHeldOnesStay) {
  const auto cache = small_cache();
  const auto held = cache->find({1, 0});
  ASSERT_EQ(held.found, Found::kClaimed);
  write(*cache, held.frame, 4711);
  cache->fill(held.frame);
  const uint64_t frames = cache->frames();
  EXPECT_EQ(frames << kPageShift, PageCache::kMinBytes);
  for (uint32_t slot = 1; slot < 5 * frames; ++slot) {
    const auto answer = cache->find({1, slot});
    ASSERT_EQ(answer.found, Found::kClaimed) << slot;
    write(*cache, answer.frame, slot);
    cache->fill(answer.frame);
    cache->release(answer.frame);
  }
  EXPECT_LE(cache->counts().pages, frames);
  EXPECT_GT(cache->counts().pages, frames * 9 / 10);
  EXPECT_EQ(cache->counts().evicted + cache->counts().pages, 5 * frames);
  const auto again = cache->find({1, 0});
  ASSERT_EQ(again.found, Found::kReady);
  EXPECT_EQ(read(*cache, again.frame), 4711U);
}

TEST(PageCache, PageThatIsUsedStaysLongerThanOthers) {
  const auto cache = small_cache();
  for (uint32_t slot = 0; slot < 3 * cache->frames(); ++slot) {
    const auto used = cache->find({9, 9});
    if (used.found == Found::kClaimed) {
      ASSERT_EQ(slot, 0U) << "it was evicted";
      cache->fill(used.frame);
    }
    cache->release(used.frame);
    const auto other = cache->find({1, slot});
    cache->fill(other.frame);
    cache->release(other.frame);
  }
}

TEST(PageCache, WhereAllFramesAreHeldThereIsNoRoom) {
  const auto cache = small_cache();
  uint64_t claimed = 0;
  uint64_t refused = 0;
  for (uint32_t slot = 0; slot < 4 * cache->frames(); ++slot)
    ++(cache->find({1, slot}).found == Found::kClaimed ? claimed : refused);
  EXPECT_EQ(claimed, cache->frames());
  EXPECT_EQ(refused, 3 * cache->frames());
}

TEST(PageCache, NeighboursThatComeInOrderLieInARow) {
  const auto cache = small_cache();
  for (uint32_t first = 0; first < cache->frames(); first += 64) {
    const auto start = cache->find({1, first});
    ASSERT_EQ(start.found, Found::kClaimed);
    for (uint32_t i = 1; i < 64; ++i)
      ASSERT_EQ(cache->find({1, first + i}).frame, start.frame + i) << first;
  }
}

TEST(PageCache, SizesOutsideOfTheLimitsAreRefused) {
  EXPECT_FALSE(PageCache::create(PageCache::kMinBytes - 1));
  EXPECT_FALSE(PageCache::create(uint64_t{1} << 44));
}

// Each thread sees only whole pages of the key that it asked for.
TEST(PageCache, ThreadsThatShareItNeverSeeAnotherPage) {
  const auto cache = small_cache();
  const uint32_t keys = static_cast<uint32_t>(cache->frames()) * 2;
  std::atomic<uint64_t> wrong{0};
  std::atomic<uint64_t> hits{0};
  const auto work = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < 60000; ++i) {
      const PageKey key{1, static_cast<uint32_t>(random() % keys)};
      const auto answer = cache->find(key);
      if (answer.found == Found::kClaimed) {
        if (random() % 16 == 0) {
          cache->abandon(answer.frame);
          continue;
        }
        const auto bytes = cache->bytes_of(answer.frame);
        for (size_t at = 0; at < kPageBytes; at += 512)
          std::memcpy(bytes.data() + at, &key.slot, sizeof key.slot);
        cache->fill(answer.frame);
      } else if (answer.found == Found::kReady) {
        const auto bytes = cache->bytes_of(answer.frame);
        for (size_t at = 0; at < kPageBytes; at += 512)
          if (std::memcmp(bytes.data() + at, &key.slot, sizeof key.slot) != 0) ++wrong;
        ++hits;
      } else {
        continue;
      }
      cache->release(answer.frame);
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(hits, 10000U);
}

}  // namespace
}  // namespace farpage::snapshot
