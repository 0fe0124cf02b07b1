#include "pager/compress/compressed_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

namespace farpage::pager {
namespace {

constexpr uint64_t kPages = 4096;
using Bytes = std::vector<std::byte>;

// Differs from page to page and from version to version.
Bytes copy_of(uint64_t page, size_t bytes, uint64_t version = 0) {
  Bytes copy(bytes);
  for (size_t i = 0; i < bytes; ++i)
    copy[i] = static_cast<std::byte>(page * 31 + version * 7 + i * (page % 5 + 1));
  return copy;
}

class PoolRig {
 public:
  bool insert(uint64_t page, size_t bytes, uint64_t most_pages = 1000, uint64_t version = 0) {
    return pool.insert(PageIndex{page}, copy_of(page, bytes, version), most_pages, 5);
  }
  // What the pool has of the page; empty: nothing.
  Bytes take(uint64_t page) {
    Bytes out(CompressedPages::kMaxBytes);
    const auto copy = pool.take(PageIndex{page}, out);
    out.resize(copy ? copy->bytes : 0);
    return out;
  }
  bool has(uint64_t page) const { return pool.has(PageIndex{page}); }
  bool agrees() const {
    const Status status = pool.check_invariants();
    EXPECT_TRUE(status) << status.error().message();
    return status.has_value();
  }

  CompressedPages pool = std::move(*CompressedPages::create(kPages));
};

TEST(CompressedPages, ACopyIsTakenOnce) {
  PoolRig rig;
  EXPECT_TRUE(rig.insert(7, 700));
  EXPECT_TRUE(rig.has(7));
  EXPECT_EQ(rig.pool.copies(), 1U);
  EXPECT_EQ(rig.pool.bytes(), 700U);
  EXPECT_EQ(rig.pool.pool_pages(), 1U);
  EXPECT_TRUE(rig.agrees());
  EXPECT_EQ(rig.take(7), copy_of(7, 700));
  EXPECT_FALSE(rig.has(7));
  EXPECT_TRUE(rig.take(7).empty());
  EXPECT_EQ(rig.pool.bytes(), 0U);
  EXPECT_EQ(rig.pool.dropped(), 0U);
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedPages, TellsWhenTheCopyWasMade) {
  PoolRig rig;
  Bytes out(CompressedPages::kMaxBytes);
  ASSERT_TRUE(rig.pool.insert(PageIndex{3}, copy_of(3, 100), 10, 12345));
  EXPECT_EQ(rig.pool.take(PageIndex{3}, out)->moment, 12345U);
}

TEST(CompressedPages, ANewCopyReplacesTheOldOne) {
  PoolRig rig;
  EXPECT_TRUE(rig.insert(7, 700));
  EXPECT_TRUE(rig.insert(7, 1500, 1000, /*version=*/1));
  EXPECT_EQ(rig.pool.copies(), 1U);
  EXPECT_EQ(rig.pool.dropped(), 1U);
  EXPECT_EQ(rig.take(7), copy_of(7, 1500, 1));
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedPages, EverySizeUpToTheLargestIsKept) {
  PoolRig rig;
  for (size_t bytes = 1; bytes <= CompressedPages::kMaxBytes; ++bytes)
    ASSERT_TRUE(rig.insert(bytes, bytes, kPages)) << bytes;
  EXPECT_TRUE(rig.agrees());
  for (size_t bytes = 1; bytes <= CompressedPages::kMaxBytes; ++bytes)
    ASSERT_EQ(rig.take(bytes), copy_of(bytes, bytes)) << bytes;
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedPages, APoolPageHasAsManyCopiesAsFit) {
  PoolRig rig;
  for (uint64_t page = 0; page < 16; ++page) EXPECT_TRUE(rig.insert(page, 244));
  EXPECT_EQ(rig.pool.pool_pages(), 1U);
  EXPECT_TRUE(rig.insert(16, 244));
  EXPECT_EQ(rig.pool.pool_pages(), 2U);
  for (uint64_t page = 100; page < 102; ++page)
    EXPECT_TRUE(rig.insert(page, CompressedPages::kMaxBytes));
  EXPECT_EQ(rig.pool.pool_pages(), 3U);
}

TEST(CompressedPages, TheOldestCopiesGoWhereThePoolMayNotGrow) {
  PoolRig rig;
  constexpr uint64_t kMost = 10;
  for (uint64_t page = 0; page < 100; ++page) EXPECT_TRUE(rig.insert(page, 2000, kMost));
  EXPECT_EQ(rig.pool.pool_pages(), kMost);
  EXPECT_EQ(rig.pool.copies(), 2 * kMost);
  EXPECT_EQ(rig.pool.dropped(), 100 - 2 * kMost);
  for (uint64_t page = 0; page < 80; ++page) EXPECT_FALSE(rig.has(page)) << page;
  for (uint64_t page = 80; page < 100; ++page) EXPECT_EQ(rig.take(page), copy_of(page, 2000));
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedPages, AnotherSizeTakesTheRoomOfTheOldest) {
  PoolRig rig;
  for (uint64_t page = 0; page < 20; ++page) EXPECT_TRUE(rig.insert(page, 2000, 10));
  EXPECT_TRUE(rig.insert(500, 100, 10));
  EXPECT_EQ(rig.pool.pool_pages(), 10U);
  EXPECT_FALSE(rig.has(0));
  EXPECT_FALSE(rig.has(1));
  EXPECT_TRUE(rig.has(2));
  EXPECT_EQ(rig.take(500), copy_of(500, 100));
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedPages, WithoutRoomNothingIsKept) {
  PoolRig rig;
  EXPECT_FALSE(rig.insert(7, 100, 0));
  EXPECT_FALSE(rig.has(7));
  EXPECT_EQ(rig.pool.pool_pages(), 0U);
}

TEST(CompressedPages, TrimDropsTheOldestAndGivesTheirMemoryBack) {
  PoolRig rig;
  for (uint64_t page = 0; page < 100; ++page) EXPECT_TRUE(rig.insert(page, 2000));
  EXPECT_EQ(rig.pool.pool_pages(), 50U);
  rig.pool.trim(20);
  EXPECT_EQ(rig.pool.pool_pages(), 20U);
  EXPECT_EQ(rig.pool.copies(), 40U);
  EXPECT_TRUE(rig.agrees());
  rig.pool.trim(0);
  EXPECT_EQ(rig.pool.pool_pages(), 0U);
  EXPECT_EQ(rig.pool.copies(), 0U);
  EXPECT_TRUE(rig.agrees());
  EXPECT_TRUE(rig.insert(1, 2000));  // the memory is used again
  EXPECT_EQ(rig.take(1), copy_of(1, 2000));
}

TEST(CompressedPages, OneCallOfTrimGivesBackALimitedNumberOfPages) {
  PoolRig rig;
  constexpr uint64_t kMore = 100;
  const uint64_t copies = 2 * (CompressedPages::kMaxTrim + kMore);
  for (uint64_t page = 0; page < copies; ++page) EXPECT_TRUE(rig.insert(page, 2000, kPages));
  rig.pool.trim(0);
  EXPECT_EQ(rig.pool.pool_pages(), kMore);
  rig.pool.trim(0);
  EXPECT_EQ(rig.pool.pool_pages(), 0U);
}

TEST(CompressedPages, OnlyAFewPoolPagesAreKeptFree) {
  PoolRig rig;
  for (uint64_t page = 0; page < 100; ++page) EXPECT_TRUE(rig.insert(page, 2000));
  for (uint64_t page = 0; page < 100; ++page) rig.pool.forget(PageIndex{page});
  EXPECT_EQ(rig.pool.pool_pages(), 50U);
  rig.pool.trim(1000);
  EXPECT_EQ(rig.pool.pool_pages(), CompressedPages::kMaxFree);
  EXPECT_EQ(rig.pool.dropped(), 100U);
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedPages, AnySequenceOfCallsKeepsTheInvariants) {
  PoolRig rig;
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::vector<uint64_t> versions(kPages);
  std::vector<size_t> sizes(kPages);
  for (int i = 0; i < 50'000; ++i) {
    const uint64_t page = random() % 1000;
    const uint64_t what = random() % 100;
    if (what < 60) {
      sizes[page] = 1 + random() % CompressedPages::kMaxBytes;
      ++versions[page];
      (void)rig.insert(page, sizes[page], 20 + random() % 60, versions[page]);
    } else if (what < 95) {
      const Bytes taken = rig.take(page);
      if (!taken.empty()) {
        ASSERT_EQ(taken, copy_of(page, sizes[page], versions[page]));
      }
    } else if (what < 99) {
      rig.pool.forget(PageIndex{page});
    } else {
      rig.pool.trim(random() % 80);
    }
    if (i % 1000 == 0) {
      ASSERT_TRUE(rig.agrees());
    }
  }
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedPages, WorkersTakeWhileTheEvictorInserts) {
  PoolRig rig;
  std::atomic<bool> ends{false};
  std::atomic<uint64_t> taken{0};
  std::vector<std::thread> workers;
  // As fault workers: each page has one owner at a time.
  for (uint64_t worker = 0; worker < 3; ++worker) {
    workers.emplace_back([&, worker] {
      while (!ends.load()) {
        for (uint64_t page = worker; page < 300; page += 3) {
          const Bytes bytes = rig.take(page);
          if (bytes.empty()) continue;
          EXPECT_EQ(bytes, copy_of(page, bytes.size()));
          ++taken;
        }
      }
    });
  }
  for (uint64_t i = 0; i < 20'000 || taken.load() == 0; ++i) {
    (void)rig.insert(i % 300, 100 + i % 1900, 40);
    if (i % 64 == 0) rig.pool.trim(40);
  }
  ends = true;
  for (std::thread& worker : workers) worker.join();
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedPages, WithoutPagesThereIsNone) {
  const CompressedPages none = std::move(*CompressedPages::create(0));
  EXPECT_FALSE(none.enabled());
  EXPECT_FALSE(none.has(PageIndex{0}));
  EXPECT_EQ(none.pool_pages(), 0U);
}

}  // namespace
}  // namespace farpage::pager
