#include "base/page_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/strong.h"

namespace farpage {
namespace {

using Bytes = std::vector<std::byte>;

TEST(PageCodec, APageComesBackAsItWas) {
  PageCodec codec;
  Bytes page(kPageBytes);
  for (size_t i = 0; i < page.size(); ++i) page[i] = static_cast<std::byte>(i / 100 * 3);
  Bytes block(2048);
  const auto bytes = codec.compress(page, block);
  ASSERT_TRUE(bytes);
  EXPECT_LT(*bytes, 1000U);
  Bytes back(kPageBytes);
  ASSERT_TRUE(decompress_page(std::span(block).first(*bytes), back));
  EXPECT_EQ(back, page);
}

TEST(PageCodec, WhatItHasNotMadeIsNoPage) {
  const Bytes block(100, std::byte{0xFF});
  Bytes page(kPageBytes);
  EXPECT_FALSE(decompress_page(block, page));
  EXPECT_FALSE(decompress_page({}, page));
}

TEST(PageCodec, ARandomPageDoesNotFit) {
  PageCodec codec;
  std::mt19937_64 random(1);
  Bytes page(kPageBytes);
  std::ranges::generate(page, [&] { return static_cast<std::byte>(random()); });
  Bytes block(2048);
  EXPECT_FALSE(codec.compress(page, block));
}

}  // namespace
}  // namespace farpage
