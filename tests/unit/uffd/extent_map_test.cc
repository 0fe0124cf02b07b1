#include "uffd/extent_map.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "base/mapping.h"

namespace farpage::uffd {
namespace {

constexpr uint64_t kWindowBase = uint64_t{1} << 44;
constexpr uint64_t kWindowPages = 100;
constexpr uint64_t kElsewhere = uint64_t{1} << 43;
constexpr uint64_t kOtherPages = 1600;

std::unique_ptr<ExtentMap> make_map(uint64_t more_pages = kOtherPages) {
  auto map = ExtentMap::create(kWindowBase, kWindowPages, more_pages);
  EXPECT_TRUE(map.has_value());
  return std::move(*map);
}
uint64_t at(uint64_t page) {
  return kElsewhere + page * kPageBytes;
}
// Every page of the map's runs in the range leads to its address, and back.
void expect_consistent(const ExtentMap& map, uint64_t begin, uint64_t end) {
  for (const PageRun& run : map.runs_in(begin, end)) {
    EXPECT_EQ(map.consecutive(run), run.pages);
    for (uint64_t i = 0; i < run.pages; ++i) {
      const PageIndex page{run.first.value + i};
      EXPECT_LT(page.value, map.pages());
      EXPECT_EQ(map.find(map.address_of(page) + 7), page);
    }
  }
}

TEST(ExtentMap, ASuccessorFindsTheExtentsWithTheirNumbers) {
  const Fd memory = std::move(*create_memfd("extents", ExtentMap::kKeptBytes));
  const auto map_there = [&] {
    return std::move(
        *ExtentMap::create(kWindowBase, kWindowPages, kOtherPages,
                           std::move(*Mapping::shared(memory.get(), ExtentMap::kKeptBytes))));
  };
  const auto dead = map_there();
  ASSERT_TRUE(dead->add(at(0), at(40)));
  ASSERT_TRUE(dead->add(at(100), at(103)));
  dead->remove(at(10), at(12));
  const auto found = map_there();
  EXPECT_EQ(found->size(), 3U);
  expect_consistent(*found, at(0), at(200));
  for (const uint64_t page : {0, 9, 12, 39, 100, 102})
    EXPECT_EQ(found->find(at(page)), dead->find(at(page))) << page;
  EXPECT_EQ(found->find(at(10)), std::nullopt);
  ASSERT_TRUE(found->add(at(300), at(301)));
  EXPECT_NE(found->find(at(300)), found->find(at(0)));
  expect_consistent(*found, at(0), at(400));
  // A forked child's: from now on its extents are there, too.
  const auto child = std::move(*found->copy());
  child->keep(std::move(*Mapping::anonymous(ExtentMap::kKeptBytes)));
  EXPECT_EQ(child->find(at(39)), found->find(at(39)));
}

// What a forked child of an attached program has where its parent's staging area was is its own.
TEST(ExtentMap, ACopyWithoutTheWindowHasTheSameExtentsAndNumbers) {
  const auto map = std::move(*ExtentMap::create(kWindowBase, kWindowPages, kOtherPages));
  ASSERT_TRUE(map->add(at(0), at(40)));
  const auto child = std::move(*map->copy_without_window());
  EXPECT_EQ(child->pages(), map->pages());
  EXPECT_EQ(child->find(at(39)), map->find(at(39)));
  EXPECT_EQ(child->find(kWindowBase), std::nullopt);
  EXPECT_TRUE(child->runs_in(kWindowBase, kWindowBase + kPageBytes).empty());
  // Its own memory there can become far, move and go.
  ASSERT_TRUE(child->add(kWindowBase, kWindowBase + 4 * kPageBytes));
  expect_consistent(*child, kWindowBase, kWindowBase + 4 * kPageBytes);
  EXPECT_TRUE(child->move(kWindowBase, at(1000), 4 * kPageBytes));
  EXPECT_EQ(child->find(kWindowBase), std::nullopt);
  EXPECT_TRUE(child->find(at(1003)).has_value());
}

TEST(ExtentMap, TheWindowHasTheFirstNumbers) {
  const auto map = make_map();
  EXPECT_EQ(map->find(kWindowBase)->value, 0U);
  EXPECT_EQ(map->find(kWindowBase + kWindowPages * kPageBytes - 1)->value, kWindowPages - 1);
  EXPECT_FALSE(map->find(kWindowBase - 1));
  EXPECT_FALSE(map->find(kWindowBase + kWindowPages * kPageBytes));
  EXPECT_EQ(map->address_of(PageIndex{3}), kWindowBase + 3 * kPageBytes);
}

TEST(ExtentMap, OnlyTheWindowIsWorthNoMemory) {
  const auto map = make_map(0);
  EXPECT_EQ(map->pages(), kWindowPages);
  EXPECT_FALSE(map->find(kElsewhere));
  EXPECT_EQ(map->add(at(0), at(1)).error().code, ErrorCode::kExhausted);
}

TEST(ExtentMap, NumbersAreGivenDenselyAndAgain) {
  const auto map = make_map();
  ASSERT_TRUE(map->add(at(0), at(32)));
  ASSERT_TRUE(map->add(at(100), at(101)));
  ASSERT_TRUE(map->add(at(50), at(60)));
  EXPECT_EQ(map->find(at(0))->value, kWindowPages);
  EXPECT_EQ(map->find(at(100))->value, kWindowPages + 32);
  EXPECT_EQ(map->find(at(50))->value, kWindowPages + 48);
  map->remove(at(0), at(32));
  EXPECT_FALSE(map->find(at(0)));
  EXPECT_EQ(map->address_of(PageIndex{kWindowPages}), 0U);
  ASSERT_TRUE(map->add(at(200), at(216)));
  EXPECT_EQ(map->find(at(200))->value, kWindowPages);
  expect_consistent(*map, 0, ~uint64_t{0});
}

TEST(ExtentMap, ACutExtentKeepsTheNumbersOfItsRest) {
  const auto map = make_map();
  ASSERT_TRUE(map->add(at(0), at(64)));
  map->remove(at(10), at(40));
  EXPECT_EQ(map->find(at(9))->value, kWindowPages + 9);
  EXPECT_FALSE(map->find(at(10)));
  EXPECT_FALSE(map->find(at(39)));
  EXPECT_EQ(map->find(at(40))->value, kWindowPages + 40);
  // Granules 1 (pages 16 to 31) is free, 0 and 2 still have pages of the extent.
  ASSERT_TRUE(map->add(at(100), at(116)));
  EXPECT_EQ(map->find(at(100))->value, kWindowPages + 16);
  ASSERT_TRUE(map->add(at(120), at(121)));
  EXPECT_EQ(map->find(at(120))->value, kWindowPages + 64);
  // What was cut out of a granule is in no run: other memory may be at its address.
  EXPECT_EQ(map->consecutive({PageIndex{kWindowPages}, 64}), 10U);
  EXPECT_EQ(map->consecutive({PageIndex{kWindowPages + 12}, 4}), 0U);
  EXPECT_EQ(map->consecutive({PageIndex{kWindowPages + 32}, 64}), 0U);
  EXPECT_EQ(map->consecutive({PageIndex{kWindowPages + 40}, 64}), 24U);
  expect_consistent(*map, 0, ~uint64_t{0});
}

TEST(ExtentMap, RefusesWhatOverlapsAndWhatIsTooMuch) {
  const auto map = make_map();
  ASSERT_TRUE(map->add(at(0), at(16)));
  EXPECT_EQ(map->add(at(15), at(20)).error().code, ErrorCode::kConflict);
  EXPECT_EQ(map->add(kWindowBase - kPageBytes, kWindowBase + kPageBytes).error().code,
            ErrorCode::kConflict);
  EXPECT_EQ(map->add(at(1000), at(1000 + kOtherPages)).error().code, ErrorCode::kExhausted);
  ASSERT_TRUE(map->add(at(1000), at(1000 + kOtherPages - 16)));
  EXPECT_EQ(map->add(at(20), at(21)).error().code, ErrorCode::kExhausted);
  EXPECT_EQ(map->size(), 2U);
}

TEST(ExtentMap, RunsComeInTheOrderOfTheAddressesWithTheWindowAmongThem) {
  const auto map = make_map();
  const uint64_t above = kWindowBase + (kWindowPages + 5) * kPageBytes;
  ASSERT_TRUE(map->add(above, above + 2 * kPageBytes));
  ASSERT_TRUE(map->add(at(0), at(4)));
  const std::vector<PageRun> runs = map->runs_in(at(1), above + kPageBytes);
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_EQ(runs[0].first.value, kWindowPages + 16 + 1);
  EXPECT_EQ(runs[0].pages, 3U);
  EXPECT_EQ(runs[1].first.value, 0U);
  EXPECT_EQ(runs[1].pages, kWindowPages);
  EXPECT_EQ(runs[2].first.value, kWindowPages);
  EXPECT_EQ(runs[2].pages, 1U);
}

TEST(ExtentMap, ConsecutivePagesEndWithTheirExtent) {
  const auto map = make_map();
  ASSERT_TRUE(map->add(at(0), at(16)));
  ASSERT_TRUE(map->add(at(100), at(132)));  // the next numbers, elsewhere
  EXPECT_EQ(map->consecutive({PageIndex{kWindowPages - 2}, 10}), 2U);
  EXPECT_EQ(map->consecutive({PageIndex{kWindowPages + 3}, 40}), 13U);
  EXPECT_EQ(map->consecutive({PageIndex{kWindowPages + 16}, 20}), 20U);
  EXPECT_EQ(map->consecutive({PageIndex{kWindowPages + 48}, 4}), 0U);
}

TEST(ExtentMap, AMovedExtentKeepsItsNumbers) {
  const auto map = make_map();
  ASSERT_TRUE(map->add(at(0), at(40)));
  ASSERT_TRUE(map->add(at(100), at(164)));
  ASSERT_TRUE(map->move(at(100), at(20), 64 * kPageBytes));  // over half of the other
  EXPECT_EQ(map->find(at(20))->value, kWindowPages + 48);
  EXPECT_EQ(map->find(at(83))->value, kWindowPages + 48 + 63);
  EXPECT_EQ(map->find(at(19))->value, kWindowPages + 19);
  EXPECT_FALSE(map->find(at(100)));
  expect_consistent(*map, 0, ~uint64_t{0});
  EXPECT_FALSE(map->move(kWindowBase, at(300), kPageBytes));  // the window stays
  EXPECT_EQ(map->find(at(20))->value, kWindowPages + 48);
}

TEST(ExtentMap, APartOfAGranuleMovesAndComesBack) {
  const auto map = make_map();
  ASSERT_TRUE(map->add(at(0), at(64)));
  ASSERT_TRUE(map->move(at(20), at(300), 3 * kPageBytes));
  EXPECT_FALSE(map->find(at(20)));
  EXPECT_EQ(map->find(at(300))->value, kWindowPages + 20);
  EXPECT_EQ(map->find(at(302))->value, kWindowPages + 22);
  EXPECT_EQ(map->address_of(PageIndex{kWindowPages + 21}), at(301));
  EXPECT_EQ(map->address_of(PageIndex{kWindowPages + 19}), at(19));
  EXPECT_EQ(map->address_of(PageIndex{kWindowPages + 23}), at(23));
  EXPECT_EQ(map->consecutive({PageIndex{kWindowPages + 10}, 30}), 10U);
  EXPECT_EQ(map->consecutive({PageIndex{kWindowPages + 20}, 30}), 3U);
  EXPECT_EQ(map->consecutive({PageIndex{kWindowPages + 23}, 30}), 30U);
  expect_consistent(*map, 0, ~uint64_t{0});
  ASSERT_TRUE(map->move(at(300), at(20), 3 * kPageBytes));
  EXPECT_EQ(map->find(at(22))->value, kWindowPages + 22);
  EXPECT_EQ(map->consecutive({PageIndex{kWindowPages + 10}, 30}), 30U);
  EXPECT_EQ(map->size(), 1U);  // as if nothing had moved
  expect_consistent(*map, 0, ~uint64_t{0});
}

TEST(ExtentMap, ACopyIsIndependent) {
  const auto map = make_map();
  ASSERT_TRUE(map->add(at(0), at(16)));
  auto copied = map->copy();
  ASSERT_TRUE(copied);
  map->remove(at(0), at(16));
  ASSERT_TRUE(map->add(at(50), at(51)));
  EXPECT_EQ((*copied)->find(at(3))->value, kWindowPages + 3);
  EXPECT_EQ((*copied)->address_of(PageIndex{kWindowPages}), at(0));
  EXPECT_FALSE((*copied)->find(at(50)));
}

// Against a model: one entry for each page.
TEST(ExtentMap, RandomChangesKeepEveryNumberUnique) {
  std::mt19937 random(11);
  const auto map = make_map();
  std::map<uint64_t, uint64_t> number_of;  // by address
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t first = random() % 2000;
    const uint64_t pages = 1 + random() % 100;
    const auto begin = number_of.lower_bound(at(first));
    const auto end = number_of.lower_bound(at(first + pages));
    if (random() % 2 == 0) {
      const bool is_free = begin == end;
      if (map->add(at(first), at(first + pages))) {
        ASSERT_TRUE(is_free);
        for (uint64_t i = 0; i < pages; ++i)
          number_of[at(first + i)] = map->find(at(first + i))->value;
      }
    } else {
      map->remove(at(first), at(first + pages));
      number_of.erase(begin, end);
    }
    if (step % 100 != 0) continue;
    std::map<uint64_t, uint64_t> address_of;
    for (const auto& [address, number] : number_of) {
      ASSERT_TRUE(address_of.emplace(number, address).second) << number;
      ASSERT_EQ(map->find(address)->value, number);
      ASSERT_EQ(map->address_of(PageIndex{number}), address);
    }
  }
}

TEST(ExtentMap, ReadersSeeTheMapBeforeOrAfterAChange) {
  const auto map = make_map(100'000);
  constexpr uint64_t kSteady = 50;  // extents that stay; others come and go between them
  for (uint64_t i = 0; i < kSteady; ++i) ASSERT_TRUE(map->add(at(i * 100), at(i * 100 + 16)));
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> wrong{0};
  std::atomic<uint64_t> reads{0};
  std::vector<std::thread> readers;
  for (uint64_t t = 0; t < 2; ++t)
    readers.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      while (!stop.load()) {
        const uint64_t i = random() % kSteady;
        const auto steady = map->find(at(i * 100 + 5));
        if (!steady || steady->value != kWindowPages + i * 16 + 5) wrong.fetch_add(1);
        const auto passing = map->find(at(i * 100 + 50));
        if (passing && passing->value < kWindowPages + kSteady * 16) wrong.fetch_add(1);
        reads.fetch_add(1);
      }
    });
  std::mt19937 random(3);
  for (int step = 0; step < 5'000 || reads.load() < 1'000; ++step) {
    const uint64_t i = random() % kSteady;
    if (!map->add(at(i * 100 + 40), at(i * 100 + 80)))
      map->remove(at(i * 100 + 40), at(i * 100 + 80));
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong.load(), 0U);
}

}  // namespace
}  // namespace farpage::uffd
