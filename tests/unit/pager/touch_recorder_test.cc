#include "pager/touch_recorder.h"

#include <gtest/gtest.h>

namespace farpage::pager {
namespace {

TEST(TouchRecorder, WithoutATouchThereIsNoTrace) {
  EXPECT_FALSE(TouchRecorder().trace());
}

TEST(TouchRecorder, KeepsOrderAndKinds) {
  TouchRecorder recorder;
  recorder.touched(PageIndex{3}, true);
  recorder.touched(PageIndex{1}, false);
  recorder.discarded(PageIndex{3});
  const auto trace = recorder.trace();
  ASSERT_TRUE(trace);
  ASSERT_EQ(trace->size(), 3U);
  EXPECT_EQ((*trace)[0], (PageAccess{3, AccessKind::kWrite}));
  EXPECT_EQ((*trace)[1], (PageAccess{1, AccessKind::kRead}));
  EXPECT_EQ((*trace)[2], (PageAccess{3, AccessKind::kDiscard}));
}

TEST(TouchRecorder, LeavesOutBlocksThatWereNeverTouched) {
  TouchRecorder recorder;
  recorder.touched(PageIndex{512 * 1000 + 7}, false);
  recorder.touched(PageIndex{512 * 1000 + 8}, false);
  recorder.touched(PageIndex{512 * 1'000'000 + 1}, false);
  recorder.touched(PageIndex{5}, false);
  recorder.touched(PageIndex{kMaxTracePages}, false);
  const auto trace = recorder.trace();
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->pages(), 512U * 3);
  ASSERT_EQ(trace->size(), 4U) << "pages beyond the limit of a trace are not recorded";
  EXPECT_EQ((*trace)[0].page, 512U + 7);
  EXPECT_EQ((*trace)[1].page, 512U + 8);
  EXPECT_EQ((*trace)[2].page, 2 * 512U + 1);
  EXPECT_EQ((*trace)[3].page, 5U);
}

TEST(AccessTrace, MostLiveIsThePeakOfPagesInUse) {
  AccessTrace trace(8);
  for (const uint32_t page : {1U, 2U, 3U}) trace.add({page, AccessKind::kWrite});
  trace.add({2, AccessKind::kDiscard});
  trace.add({2, AccessKind::kDiscard});
  trace.add({5, AccessKind::kRead});
  trace.add({5, AccessKind::kRead});
  EXPECT_EQ(trace.most_live(), 3U);
}

}  // namespace
}  // namespace farpage::pager
