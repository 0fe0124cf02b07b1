#include "pager/fork/fork_group.h"

#include <gtest/gtest.h>

namespace farpage::pager {
namespace {

constexpr BackingId kFirst{0};
constexpr BackingId kSecond{1};

std::unique_ptr<ProcessImage> copy(const ProcessImage& parent) {
  auto image = ProcessImage::copy_of(parent, [](PageIndex, PageWord word) { return word; });
  EXPECT_TRUE(image.has_value());
  return std::move(*image);
}

bool refers_elsewhere(const ProcessImage& self, BackingId backing_region, uint64_t page) {
  const std::lock_guard lock(self.fork_group()->mutex());
  return self.fork_group()->refers_elsewhere(self, backing_region, PageIndex{page});
}

class ForkGroupTest : public testing::Test {
 protected:
  ForkGroupTest() {
    parent_->table().place(PageIndex{0}, PageWord(PageState::kRemote).with_backing(kSecond));
    parent_->table().place(PageIndex{1}, PageWord(PageState::kClean));
    parent_->table().place(PageIndex{2}, PageWord(PageState::kDirty));
    parent_->table().place(PageIndex{3}, PageWord(PageState::kFetching, PageWord::kFromRemote));
    parent_->table().place(PageIndex{4}, PageWord(PageState::kFetching));
    parent_->table().place(PageIndex{5}, PageWord(PageState::kLost));
  }
  const Succession succession_ = std::move(*Succession::create(nullptr));
  std::unique_ptr<ProcessImage> parent_ = std::move(
      *ProcessImage::create(1000, std::make_shared<NodeDirectory>(succession_), succession_));
};

TEST_F(ForkGroupTest, AProcessAloneRefersForNobodyElse) {
  for (uint64_t page = 0; page < 10; ++page) EXPECT_FALSE(refers_elsewhere(*parent_, kFirst, page));
}

TEST_F(ForkGroupTest, ACopyRefersToTheSlotsThatItMayStillRead) {
  const std::unique_ptr<ProcessImage> child = copy(*parent_);
  EXPECT_TRUE(refers_elsewhere(*parent_, kSecond, 0));
  EXPECT_FALSE(refers_elsewhere(*parent_, kFirst, 0));  // the same page of another backing region
  EXPECT_TRUE(refers_elsewhere(*parent_, kFirst, 1));
  EXPECT_FALSE(refers_elsewhere(*parent_, kFirst, 2));
  EXPECT_TRUE(refers_elsewhere(*parent_, kFirst, 3));
  EXPECT_FALSE(refers_elsewhere(*parent_, kFirst, 4));
  EXPECT_FALSE(refers_elsewhere(*parent_, kFirst, 5));
  EXPECT_TRUE(check_invariants(child->table()).has_value());
}

TEST_F(ForkGroupTest, ASlotIsFreeAgainOnceTheCopyChangesThePageOrEnds) {
  std::unique_ptr<ProcessImage> child = copy(*parent_);
  const PageWord remote = child->table().load(PageIndex{0});
  child->table().transition_owned(PageIndex{0}, remote, PageWord(PageState::kEmpty));
  EXPECT_FALSE(refers_elsewhere(*parent_, kSecond, 0));
  EXPECT_TRUE(refers_elsewhere(*parent_, kFirst, 1));
  child.reset();
  EXPECT_FALSE(refers_elsewhere(*parent_, kFirst, 1));
}

TEST_F(ForkGroupTest, ACopyOfACopyRefersToo) {
  std::unique_ptr<ProcessImage> child = copy(*parent_);
  const std::unique_ptr<ProcessImage> grandchild = copy(*child);
  child.reset();
  EXPECT_TRUE(refers_elsewhere(*parent_, kSecond, 0));
  const std::unique_ptr<ProcessImage> sibling = copy(*parent_);
  parent_.reset();
  EXPECT_TRUE(refers_elsewhere(*sibling, kSecond, 0));
}

TEST_F(ForkGroupTest, LayersHaveNumbersUntilTheirLimitAndAfterAnEndAgain) {
  auto leases = LeaseMap::create(1000, uint64_t{2} << 20).value();
  const auto fork_group = parent_->fork_group();
  for (uint32_t i = 0; i < kMaxBackingRegions; ++i)
    ASSERT_EQ(fork_group->add_backing_region(*leases)->value, i);
  EXPECT_FALSE(fork_group->add_backing_region(*leases).has_value());
  fork_group->remove_backing_region(BackingId{77});
  EXPECT_EQ(fork_group->add_backing_region(*leases)->value, 77U);
}

}  // namespace
}  // namespace farpage::pager
