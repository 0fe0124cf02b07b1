#include "pager/pages/write_guess.h"

#include <gtest/gtest.h>

namespace farpage::pager {
namespace {

// How many of `pages` pages fetched for a read are write-protected. `write`: each of those is then
// written.
int protected_of(WriteGuess& guess, int pages, bool write) {
  int protections = 0;
  for (int i = 0; i < pages; ++i) {
    if (!guess.protect_next()) continue;
    ++protections;
    if (write) guess.written();
  }
  return protections;
}

TEST(WriteGuess, PagesThatAreOnlyReadAreAllProtected) {
  WriteGuess guess;
  EXPECT_EQ(protected_of(guess, 10'000, false), 10'000);
}

TEST(WriteGuess, FewWritesChangeNothing) {
  WriteGuess guess;
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(guess.protect_next()) << i;
    if (i % 5 == 0) guess.written();
  }
}

TEST(WriteGuess, WhereManyAreWrittenOneInThirtyTwoIsProtected) {
  WriteGuess guess;
  (void)protected_of(guess, 1000, true);
  EXPECT_EQ(protected_of(guess, 32'000, true), 1000);
}

TEST(WriteGuess, ItComesBackWhenTheWritesEnd) {
  WriteGuess guess;
  (void)protected_of(guess, 10'000, true);
  (void)protected_of(guess, 40'000, false);
  EXPECT_EQ(protected_of(guess, 1000, false), 1000);
}

TEST(WriteGuess, AFewPagesAreNoReasonToGuess) {
  WriteGuess guess;
  EXPECT_EQ(protected_of(guess, 64, true), 64);
}

}  // namespace
}  // namespace farpage::pager
