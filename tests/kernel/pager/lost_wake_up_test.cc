// A write that faults after another thread of the pager has removed the page's protection, or has
// installed the page, and before the page table says so.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <future>
#include <optional>
#include <string>
#include <thread>

#include "interrupted_space.h"
#include "rig.h"

namespace farpage::pager {
namespace {

constexpr PageIndex kPage{7};

using Call = InterruptedSpace::Call;

bool ready(const std::future<void>& future) {
  return future.wait_for(kPatience) == std::future_status::ready;
}

// A store on another thread.
struct Write {
  Write(volatile uint64_t* word, uint64_t value)
      : done(end.get_future()), thread([this, word, value] {
          *word = value;
          end.set_value();
        }) {}
  std::promise<void> end;
  std::future<void> done;
  std::jthread thread;
};

class LostWakeUp : public testing::TestWithParam<Call> {};

INSTANTIATE_TEST_SUITE_P(After, LostWakeUp, testing::Values(Call::kInstall, Call::kUnprotect),
                         testing::PrintToStringParamName());

// The evictor protects spans, and a span covers pages that are not its victims. So a page may be
// protected again between the call that woke its writers and the change of the page table. A thread
// that writes then can be woken only by the worker that has read its fault.
TEST_P(LostWakeUp, WriteToAPageProtectedAgainTooSoonEnds) {
  InterruptedSpace* space = nullptr;
  Rig rig(interruptible(space));
  volatile uint64_t* words = rig.page(kPage.value);
  words[2] = 3;
  // A page that is not in the table yet is not evicted, and the hint is dropped.
  ASSERT_TRUE(comes_true([&] { return rig.stats().faults_zero == 1; }));
  rig.pager().hint_cold({kPage, 1});
  ASSERT_TRUE(comes_true([&] { return rig.pager().is_away(kPage); }));
  // A write to an absent page leads to an install, a write to a page that was read to an unprotect.
  if (GetParam() == Call::kUnprotect) {
    ASSERT_EQ(words[2], 3U);
  }

  std::promise<void> first_ended;
  std::optional<Write> second;
  std::promise<void> interruption;
  space->interrupt(GetParam(), kPage, [&] {
    EXPECT_TRUE(ready(first_ended.get_future()));
    EXPECT_EQ(space->protect({kPage, 1}), uffd::Outcome::kDone);
    const std::future<void> handled = space->next_write_fault_handled(kPage);
    second.emplace(&words[1], 2);
    EXPECT_TRUE(ready(handled));
    interruption.set_value();
  });
  words[0] = 1;
  first_ended.set_value();
  ASSERT_TRUE(ready(interruption.get_future()));

  const bool ended = ready(second->done);
  EXPECT_TRUE(ended) << "nobody woke the second writer";
  if (!ended) (void)space->unprotect({kPage, 1});
  second->thread.join();
  EXPECT_EQ(words[0], 1U);
  EXPECT_EQ(words[1], 2U);
  EXPECT_EQ(words[2], 3U);
  EXPECT_EQ(rig.stats().faults_failed, 0U);
}

class DroppedTooSoon : public testing::TestWithParam<Call> {};

INSTANTIATE_TEST_SUITE_P(After, DroppedTooSoon, testing::Values(Call::kInstall, Call::kZero),
                         testing::PrintToStringParamName());

// The call that installs a page wakes its waiters. The target may drop the page at once and fault
// again before the page table says that the page was present. That fault is left to the thread that
// owns the page, although its call is over.
TEST_P(DroppedTooSoon, TouchBeforeTheOwnerHasSpokenEnds) {
  InterruptedSpace* space = nullptr;
  Rig rig(interruptible(space));
  volatile uint64_t* words = rig.page(kPage.value);
  if (GetParam() == Call::kInstall) {
    words[2] = 3;
    ASSERT_TRUE(comes_true([&] { return rig.stats().faults_zero == 1; }));
    rig.pager().hint_cold({kPage, 1});
    ASSERT_TRUE(comes_true([&] { return rig.pager().is_away(kPage); }));
  }
  std::optional<Write> second;
  std::promise<void> interruption;
  space->interrupt(GetParam(), kPage, [&] {
    EXPECT_EQ(::madvise(rig.bytes(kPage.value), kPageBytes, MADV_DONTNEED), 0);
    second.emplace(words + 1, 5);
    EXPECT_TRUE(comes_true([&] { return rig.stats().faults_coalesced >= 1; }));
    interruption.set_value();
  });
  words[3] = 4;
  ASSERT_TRUE(ready(interruption.get_future()));
  const bool ended = ready(second->done);
  EXPECT_TRUE(ended) << "nobody woke the second writer";
  if (!ended) space->wake({kPage, 1});
  second->thread.join();
  EXPECT_EQ(words[1], 5U);
  EXPECT_TRUE(comes_true([&] { return rig.pager().check_invariants().has_value(); }));
}

}  // namespace
}  // namespace farpage::pager
