#include "bench/content.h"

#include <gtest/gtest.h>

#include <array>

namespace farpage::bench {
namespace {

using Page = std::array<uint64_t, Content::kWords>;

constexpr uint64_t kPage = 17;

class ContentTest : public testing::Test {
 protected:
  ContentTest() { content_.fill(kPage, page_); }
  void write(uint32_t version) {
    page_[Content::mark_word(version)] = content_.mark(kPage, version);
  }

  const Content content_{42};
  Page page_{};
};

TEST_F(ContentTest, FilledPageHoldsVersionZeroOfItselfAlone) {
  EXPECT_TRUE(content_.holds(kPage, 0, page_));
  EXPECT_FALSE(content_.holds(kPage + 1, 0, page_));
  EXPECT_FALSE(content_.holds(kPage, 1, page_));
  EXPECT_FALSE(Content(43).holds(kPage, 0, page_));
  EXPECT_FALSE(content_.holds(kPage, 0, Page{}));
}

TEST_F(ContentTest, EveryWordIsChecked) {
  for (size_t word = 0; word < Content::kWords; ++word) {
    page_[word] ^= 1;
    EXPECT_FALSE(content_.holds(kPage, 0, page_)) << "word " << word;
    page_[word] ^= 1;
  }
}

TEST_F(ContentTest, PageHoldsTheVersionsItWasGivenInTurn) {
  for (uint32_t version = 1; version <= 3 * Content::kMarks; ++version) {
    write(version);
    EXPECT_TRUE(content_.holds(kPage, version, page_)) << version;
    EXPECT_FALSE(content_.holds(kPage, version - 1, page_)) << version;
    EXPECT_FALSE(content_.holds(kPage, version + 1, page_)) << version;
  }
}

TEST_F(ContentTest, OneLostWriteIsSeenUntilItsWordIsWrittenAgain) {
  constexpr uint32_t kLost = 20;
  for (uint32_t version = 1; version < kLost; ++version) write(version);
  for (uint32_t version = kLost + 1; version < kLost + Content::kMarks; ++version) {
    write(version);
    EXPECT_FALSE(content_.holds(kPage, version, page_)) << version;
  }
}

TEST(ContentWords, AreThoseOfThePages) {
  const Content content(7);
  Page page{};
  content.fill(3, page);
  EXPECT_TRUE(content.holds_words(3 * Content::kWords, page));
  // A piece in the middle, and one across two pages.
  EXPECT_TRUE(content.holds_words(3 * Content::kWords + 100, std::span(page).subspan(100, 8)));
  std::array<uint64_t, 16> across{};
  content.fill_words(4 * Content::kWords - 8, across);
  EXPECT_TRUE(std::equal(across.begin(), across.begin() + 8, page.end() - 8));
  across[15] ^= 1;
  EXPECT_FALSE(content.holds_words(4 * Content::kWords - 8, across));
}

}  // namespace
}  // namespace farpage::bench
