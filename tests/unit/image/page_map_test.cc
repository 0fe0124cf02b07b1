#include "image/page_map.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

namespace farpage::image {
namespace {

constexpr uint64_t kPages = 1000;
const std::vector<uint64_t> kStored = {600, 300};  // of the image, of its base

// Every third page is zeros, every fourth of the others is of the base.
PageMap some_map(uint64_t pages = kPages) {
  auto map = PageMap::create(pages);
  EXPECT_TRUE(map.has_value());
  uint32_t own = 0;
  uint32_t base = 0;
  for (uint64_t page = 0; page < pages; ++page) {
    if (page % 3 == 0) continue;
    const bool is_own = page % 4 != 0;
    map->set(page, {page * 7919 + 1, is_own ? own++ : base++, is_own ? 0U : 1U});
  }
  return std::move(*map);
}

Mapping copy_of(const PageMap& map) {
  const auto bytes = map.encode();
  auto copy = Mapping::anonymous(bytes.size());
  EXPECT_TRUE(copy.has_value());
  std::memcpy(copy->data(), bytes.data(), bytes.size());
  return std::move(*copy);
}

TEST(PageMap, IsDecodedAsItWasEncoded) {
  const PageMap map = some_map();
  EXPECT_EQ(map.encode().size(), PageMap::encoded_pages(kPages) << kPageShift);
  const auto again = PageMap::decode(copy_of(map), kPages, kStored, map.digest());
  ASSERT_TRUE(again.has_value()) << again.error().message();
  for (uint64_t page = 0; page < kPages; ++page) EXPECT_EQ((*again)[page], map[page]);
}

TEST(PageMap, DigestIsOfTheContentAndNotOfThePlaces) {
  PageMap map = some_map();
  const std::string digest = map.digest();
  EXPECT_EQ(digest.size(), 64U);
  PageEntry moved = map[1];
  moved.slot += 5;
  moved.generation = 1;
  map.set(1, moved);
  EXPECT_EQ(map.digest(), digest);
  moved.checksum += 1;
  map.set(1, moved);
  EXPECT_NE(map.digest(), digest);
}

TEST(PageMap, DigestsOfDifferentContentsDiffer) {
  std::vector<std::string> digests;
  for (const uint64_t pages : {1U, 511U, 512U, 513U, 1024U})
    digests.push_back(some_map(pages).digest());
  PageMap swapped = some_map(513);
  const PageEntry first = swapped[1];
  swapped.set(1, swapped[2]);
  swapped.set(2, first);
  digests.push_back(swapped.digest());
  // Zeros at the end are pages, too.
  digests.push_back(PageMap::create(7)->digest());
  digests.push_back(PageMap::create(8)->digest());
  for (size_t i = 0; i < digests.size(); ++i)
    for (size_t j = i + 1; j < digests.size(); ++j) EXPECT_NE(digests[i], digests[j]) << i << j;
}

TEST(PageMap, AnyDamagedChecksumIsFound) {
  const PageMap map = some_map();
  for (const uint64_t page : {uint64_t{0}, uint64_t{1}, kPages / 2, kPages - 1}) {
    Mapping damaged = copy_of(map);
    damaged.data()[page * sizeof(PageEntry)] ^= std::byte{1};
    EXPECT_FALSE(PageMap::decode(std::move(damaged), kPages, kStored, map.digest())) << page;
  }
}

TEST(PageMap, PlacesOutsideOfTheGenerationsAreRefused) {
  const PageMap good = some_map();
  for (const PageEntry& place :
       {PageEntry{8 * 7919 + 1, 300, 1}, PageEntry{8 * 7919 + 1, 600, 0},
        PageEntry{8 * 7919 + 1, 0, 2}, PageEntry{8 * 7919 + 1, 0, ~uint32_t{0}}}) {
    PageMap map = some_map();
    map.set(8, place);
    ASSERT_EQ(map.digest(), good.digest()) << "only the place is wrong";
    EXPECT_EQ(PageMap::decode(copy_of(map), kPages, kStored, map.digest()).error().code,
              ErrorCode::kInvalid);
  }
}

TEST(PageMap, ShortOneIsRefused) {
  const PageMap map = some_map();
  auto bytes = Mapping::anonymous(map.encode().size() - kPageBytes);
  EXPECT_FALSE(PageMap::decode(std::move(*bytes), kPages, kStored, map.digest()));
}

TEST(PageMap, ZeroPagesAreTold) {
  alignas(kPageBytes) std::array<std::byte, kPageBytes> page{};
  EXPECT_TRUE(is_zero(page));
  for (const size_t at : {size_t{0}, size_t{63}, size_t{64}, size_t{2048}, kPageBytes - 1}) {
    page[at] = std::byte{1};
    EXPECT_FALSE(is_zero(page)) << at;
    page[at] = std::byte{0};
  }
  EXPECT_NE(checksum_of(page), 0U);
}

}  // namespace
}  // namespace farpage::image
