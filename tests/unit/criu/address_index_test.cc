#include "criu/address_index.h"

#include <gtest/gtest.h>

#include <cstring>

namespace farpage::criu {
namespace {

std::string decode_error(const std::vector<IndexedRange>& ranges, uint64_t image_pages) {
  // As encode() would write them, right or wrong.
  const auto right = AddressIndex::create({});
  std::vector<std::byte> bytes = right->encode();
  const uint64_t count = ranges.size();
  std::memcpy(bytes.data() + 8, &count, sizeof count);
  std::memcpy(bytes.data() + sizeof(IndexedRange), ranges.data(),
              ranges.size() * sizeof(IndexedRange));
  const auto decoded = AddressIndex::decode(bytes, image_pages);
  return decoded ? "none" : decoded.error().context;
}

TEST(AddressIndex, PagesFollowTheIndexAndNeighboursAreJoined) {
  const auto index = AddressIndex::create(std::vector<IndexedRange>{
      {5, 4096, 2, 0}, {5, 12288, 3, 0}, {5, 65536, 1, 0}, {7, 4096, 4, 0}});
  ASSERT_TRUE(index.has_value()) << index.error().message();
  EXPECT_EQ(index->ranges(),
            (std::vector<IndexedRange>{{5, 4096, 5, 1}, {5, 65536, 1, 6}, {7, 4096, 4, 7}}));
  EXPECT_EQ(index->pages(), 1U);
  EXPECT_EQ(index->indexed_pages(), 10U);
  EXPECT_EQ(index->processes(), 2U);
}

TEST(AddressIndex, AddressesAreFoundAndOthersAreNot) {
  const auto index = AddressIndex::create(
      std::vector<IndexedRange>{{5, 4096, 5, 0}, {5, 65536, 1, 0}, {7, 4096, 4, 0}});
  ASSERT_TRUE(index.has_value());
  const auto found = [&](uint64_t process, uint64_t address) {
    const auto place = index->find(process, address);
    return place ? std::pair(place->page, place->pages) : std::pair<uint64_t, uint64_t>(0, 0);
  };
  const std::pair<uint64_t, uint64_t> none(0, 0);
  EXPECT_EQ(found(5, 4096), std::pair(uint64_t{1}, uint64_t{5}));
  EXPECT_EQ(found(5, 20480), std::pair(uint64_t{5}, uint64_t{1}));
  EXPECT_EQ(found(5, 65536), std::pair(uint64_t{6}, uint64_t{1}));
  EXPECT_EQ(found(7, 8192), std::pair(uint64_t{8}, uint64_t{3}));
  for (const auto& [process, address] : std::vector<std::pair<uint64_t, uint64_t>>{
           {5, 0}, {5, 24576}, {5, 69632}, {4, 4096}, {6, 4096}, {7, 20480}, {8, 4096}})
    EXPECT_EQ(found(process, address), none) << process << " " << address;
}

TEST(AddressIndex, IsDecodedAsItWasEncoded) {
  std::vector<IndexedRange> ranges;
  for (uint64_t i = 0; i < 1000; ++i)
    ranges.push_back({1 + i / 100, (1 + i) * 65536, 1 + i % 3, 0});
  const auto index = AddressIndex::create(ranges);
  ASSERT_TRUE(index.has_value());
  const std::vector<std::byte> bytes = index->encode();
  EXPECT_EQ(bytes.size(), 8U << kPageShift) << "1001 entries of 32 bytes";
  const uint64_t image_pages = index->pages() + index->indexed_pages();
  const auto pages = AddressIndex::pages_of(std::span(bytes).first(kPageBytes), image_pages);
  ASSERT_TRUE(pages.has_value());
  EXPECT_EQ(*pages, 8U);
  const auto again = AddressIndex::decode(bytes, image_pages);
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_EQ(again->ranges(), index->ranges());
  EXPECT_FALSE(AddressIndex::decode(bytes, image_pages - 1).has_value());
  EXPECT_FALSE(AddressIndex::decode(std::span(bytes).first(7U << kPageShift), image_pages));
}

TEST(AddressIndex, UnsortedRangesAreRefused) {
  for (const auto& ranges :
       std::vector<std::vector<IndexedRange>>{{{5, 8192, 1, 0}, {5, 4096, 1, 0}},
                                              {{5, 4096, 2, 0}, {5, 8192, 1, 0}},
                                              {{7, 4096, 1, 0}, {5, 8192, 1, 0}},
                                              {{5, 4097, 1, 0}},
                                              {{5, 4096, 0, 0}},
                                              {{5, uint64_t{1} << 56, 1, 0}},
                                              {{5, 4096, uint64_t{1} << 52, 0}}})
    EXPECT_FALSE(AddressIndex::create(ranges).has_value()) << ranges.back().address;
}

TEST(AddressIndex, DamagedIndexIsRefused) {
  EXPECT_EQ(decode_error({{5, 4096, 2, 1}}, 3), "none");
  EXPECT_EQ(decode_error({{5, 4096, 2, 1}}, 2),
            "range 0 of the index: its pages are outside of the image");
  EXPECT_EQ(decode_error({{5, 4096, 2, 0}}, 3),
            "range 0 of the index: its pages are outside of the image");
  EXPECT_EQ(decode_error({{5, 4096, 2, ~uint64_t{0}}}, 3),
            "range 0 of the index: its pages are outside of the image");
  EXPECT_EQ(decode_error({{5, 4096, 2, 1}, {5, 8192, 1, 1}}, 3),
            "range 1 of the index: it is not behind the range before");
  std::vector<std::byte> bytes = AddressIndex::create({})->encode();
  const uint64_t many = kMaxIndexRanges + 1;
  std::memcpy(bytes.data() + 8, &many, sizeof many);
  EXPECT_EQ(AddressIndex::pages_of(bytes, uint64_t{1} << 28).error().context,
            "its index would have 16777217 ranges of addresses");
  EXPECT_EQ(AddressIndex::pages_of(std::vector<std::byte>(kPageBytes), 1).error().context,
            "it is no checkpoint of criu");
}

}  // namespace
}  // namespace farpage::criu
