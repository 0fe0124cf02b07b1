// The group's books, with pagers that only have numbers.
#include "serve/budget_group.h"

#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <memory>
#include <vector>

#include "base/size.h"
#include "serve/budget_shares.h"

namespace farpage::serve {
namespace {

constexpr uint64_t kLocalPages = 8192;
constexpr uint64_t kLocalBytes = kLocalPages << kPageShift;

class NumbersOnly final : public pager::Pager {
 public:
  explicit NumbersOnly(pager::BudgetUse use) : use_(use) {}

  pager::BudgetUse& use() { return use_; }
  int guards() const { return guards_; }
  uint64_t kept() const { return kept_; }

  pager::BudgetUse budget_use() const override { return use_; }
  Status set_limit(uint64_t pages, uint64_t shared_pages) override {
    use_.limit_pages = pages;
    kept_ = shared_pages;
    return {};
  }
  Status set_local(uint64_t local_bytes) override {
    return set_limit(local_bytes >> kPageShift, 0);
  }
  uint64_t guard_shared() override {
    ++guards_;
    return use_.used_pages - std::exchange(use_.shared_pages, use_.used_pages);
  }

  void discard(uffd::PageRun) override {}
  bool try_discard(uffd::PageRun) override { return true; }
  Status add_extent(uint64_t, uint64_t) override { return {}; }
  Status cover(uint64_t, uint64_t) override { return {}; }
  Status adopt_present(uint64_t, uint64_t) override { return {}; }
  Status bring_back() override { return {}; }
  void remove_extent(uint64_t, uint64_t) override {}
  bool pin(uffd::PageRun) override { return true; }
  void unpin(uffd::PageRun) override {}
  void hint_cold(uffd::PageRun) override {}
  void hint_willneed(uffd::PageRun) override {}
  void advise(uffd::PageRun, pager::AccessPattern) override {}
  uint64_t limit_to_pin(uffd::PageRun) const override { return 0; }
  Status refresh_stored(const std::vector<coordinator::Lease>&) override { return {}; }
  bool begin_fork() override { return true; }
  void end_fork(bool) override {}
  bool is_forking() override { return false; }
  void child_found(std::unique_ptr<uffd::AddressSpace>) override {}
  int attention_descriptor() const override { return -1; }
  void adopt_children() override {}
  bool has_arrivals() const override { return false; }
  void agent_ready(std::string, uint64_t) override {}
  bool wants_budget() const override { return false; }
  void begin_eviction() override {}
  void resolve(PageIndex, uffd::FaultKind) override {}
  std::optional<uffd::FaultKind> next_fault(PageIndex, bool) const override { return std::nullopt; }
  bool is_away(PageIndex) const override { return false; }
  bool has_spare_room() const override { return true; }
  bool is_lost(PageIndex) const override { return false; }
  uffd::AddressSpace& space() override { std::abort(); }
  pager::PagerStats stats() const override { return {}; }
  std::shared_ptr<const pager::TouchRecorder> recorder() const override { return nullptr; }
  bool target_gone() const override { return false; }
  Status check_invariants() const override { return {}; }

 private:
  pager::BudgetUse use_;
  int guards_ = 0;
  uint64_t kept_ = 0;
};

class BudgetGroupTest : public testing::Test {
 protected:
  NumbersOnly& process(uint64_t used, uint64_t family) {
    pagers_.push_back(
        std::make_unique<NumbersOnly>(pager::BudgetUse{.used_pages = used, .family = family}));
    return *pagers_.back();
  }
  void run_for(Milliseconds time) {
    control_.restart();
    (void)control_.run_for(time);
  }

  boost::asio::io_context control_;
  std::vector<std::unique_ptr<NumbersOnly>> pagers_;  // they outlive the group
  BudgetGroup group_{control_, kLocalBytes, BudgetScope::kGroup};
};

TEST_F(BudgetGroupTest, PagesOfAChildOnTrialAreThoseOfTheGroup) {
  NumbersOnly& parent = process(1000, 1);
  group_.add(parent, {});
  EXPECT_EQ(parent.use().limit_pages, kLocalPages);
  NumbersOnly& child = process(1000, 1);
  const uint64_t free_pages = group_.begin_trial(child, &parent);
  EXPECT_EQ(free_pages, pager::kFreePages);
  EXPECT_EQ(parent.guards() + child.guards(), 0) << "there is room for copies of all pages";
  EXPECT_EQ(parent.use().limit_pages, kLocalPages - 1000 - free_pages);
  // Most children exec. Their pages are held back for the next one, for a moment.
  group_.remove(child);
  EXPECT_EQ(parent.use().limit_pages, kLocalPages - 1000 - free_pages);
  run_for(4 * BudgetGroup::kStep);
  EXPECT_EQ(parent.use().limit_pages, kLocalPages);
}

TEST_F(BudgetGroupTest, VeryManyChildrenOnTrialHaveAPartOfTheBudgetAndAMinimum) {
  NumbersOnly& parent = process(kLocalPages / 2, 1);
  group_.add(parent, {});
  uint64_t sum = 0;
  uint64_t least = pager::kFreePages;
  for (int i = 0; i < 100; ++i) {
    const uint64_t free_pages = group_.begin_trial(process(kLocalPages / 2, 1), &parent);
    sum += free_pages;
    least = std::min(least, free_pages);
  }
  EXPECT_EQ(least, 16U);
  EXPECT_LT(sum, kLocalPages / 2);
  EXPECT_EQ(parent.use().limit_pages, kLocalPages - sum);
  for (int i = 0; i < 1000; ++i) (void)group_.begin_trial(process(kLocalPages / 2, 1), &parent);
  EXPECT_EQ(parent.use().limit_pages, kFloorPages) << "it can go on";
}

TEST_F(BudgetGroupTest, WhereCopiesOfAllWouldExceedTheBudgetAllAreGuarded) {
  NumbersOnly& parent = process(5000, 1);
  group_.add(parent, {});
  NumbersOnly& child = process(5000, 1);
  (void)group_.begin_trial(child, &parent);
  EXPECT_EQ(parent.guards(), 1);
  EXPECT_EQ(child.guards(), 1);
}

TEST_F(BudgetGroupTest, FramesOfRelativesAreCountedOnceAndTheRestIsDivided) {
  NumbersOnly& parent = process(5000, 1);
  group_.add(parent, {});
  std::vector<NumbersOnly*> children;
  for (int i = 0; i < 3; ++i) {
    children.push_back(&process(5000, 1));
    (void)group_.begin_trial(*children.back(), &parent);
  }
  for (NumbersOnly* child : children) group_.end_trial(*child, {});
  const auto limits = [&] {
    uint64_t sum = parent.use().limit_pages;
    for (NumbersOnly* child : children) sum += child->use().limit_pages;
    return sum;
  };
  EXPECT_LE(limits(), kLocalPages - 5000);
  EXPECT_EQ(parent.kept(), 5000U) << "one of them keeps what they share";
  for (const NumbersOnly* child : children) EXPECT_EQ(child->kept(), 0U);
  for (int step = 0; step < 20; ++step) {
    for (NumbersOnly* child : children) {
      child->use().faults += 100;
      child->use().used_pages = 5000 + child->use().limit_pages;  // it uses what it gets
    }
    run_for(BudgetGroup::kStep);
  }
  EXPECT_LE(limits(), kLocalPages - 5000);
  for (NumbersOnly* child : children)
    EXPECT_GT(child->use().limit_pages, kFloorPages) << "room for pages of its own";
  // They share no more: each has its pages, and the sum is what counts.
  for (NumbersOnly* child : children) child->use() = {.limit_pages = 2000, .used_pages = 1900};
  parent.use() = {.limit_pages = parent.use().limit_pages, .used_pages = 1900};
  run_for(10 * BudgetGroup::kStep);
  EXPECT_LE(limits(), kLocalPages);
  EXPECT_EQ(parent.kept(), 0U);
  EXPECT_GT(limits(), kLocalPages - 5000 + 1000);
}

TEST_F(BudgetGroupTest, WithABudgetForEachProcessNothingIsHeldBack) {
  BudgetGroup each(control_, kLocalBytes, BudgetScope::kEach);
  NumbersOnly& parent = process(8000, 1);
  each.add(parent, {});
  NumbersOnly& child = process(8000, 1);
  EXPECT_EQ(each.begin_trial(child, &parent), pager::kFreePages);
  each.end_trial(child, {});
  EXPECT_EQ(parent.use().limit_pages, kLocalPages);
  EXPECT_EQ(child.use().limit_pages, kLocalPages);
  EXPECT_EQ(child.guards(), 0);
}

}  // namespace
}  // namespace farpage::serve
