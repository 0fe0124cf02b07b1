#include "kv/content.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kv {
namespace {

TEST(Content, HoldsForItsKeyAndVersionAlone) {
  for (const size_t bytes : {kMinContentBytes, size_t{17}, size_t{4096}, size_t{10'001}}) {
    std::vector<std::byte> value(bytes);
    fill_content("key", 3, value);
    EXPECT_TRUE(holds_content("key", 3, value)) << bytes;
    EXPECT_FALSE(holds_content("key", 2, value)) << bytes;
    EXPECT_FALSE(holds_content("kez", 3, value)) << bytes;
  }
}

TEST(Content, EveryChangedByteIsSeen) {
  std::vector<std::byte> value(200);
  fill_content("key", 1, value);
  for (std::byte& byte : value) {
    byte ^= std::byte{1};
    EXPECT_FALSE(holds_content("key", 1, value));
    byte ^= std::byte{1};
  }
  EXPECT_TRUE(holds_content("key", 1, value));
}

TEST(Content, APageOfZerosOrOfAnotherPlaceIsSeen) {
  std::vector<std::byte> value(3 * 4096);
  fill_content("key", 1, value);
  std::vector<std::byte> zeroed = value;
  std::fill(zeroed.begin() + 4096, zeroed.begin() + 8192, std::byte{0});
  EXPECT_FALSE(holds_content("key", 1, zeroed));
  std::vector<std::byte> swapped = value;
  std::swap_ranges(swapped.begin() + 4096, swapped.begin() + 8192, swapped.begin() + 8192);
  EXPECT_FALSE(holds_content("key", 1, swapped));
  EXPECT_FALSE(holds_content("key", 1, std::vector<std::byte>(4096)));
}

}  // namespace
}  // namespace kv
