#include "base/result.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace farpage {
namespace {

Result<int> half_of(int value) {
  if (value % 2 != 0) return fail(ErrorCode::kInvalid, "value is odd");
  return value / 2;
}

Result<int> quarter_of(int value) {
  FARPAGE_TRY(half, half_of(value));
  return half_of(half);
}

TEST(Result, TryPassesTheValueOrTheFailureOn) {
  EXPECT_EQ(quarter_of(8).value(), 2);
  ASSERT_FALSE(quarter_of(6).has_value());
  EXPECT_EQ(quarter_of(6).error().context, "value is odd");
}

TEST(Result, ErrnoBecomesCodeAndText) {
  const Status denied = fail_errno("open userfaultfd", EPERM);
  EXPECT_EQ(denied.error().code, ErrorCode::kDenied);
  EXPECT_EQ(denied.error().message(), "open userfaultfd: Operation not permitted");
}

TEST(Result, ContextIsPutInFront) {
  const Status status = fail_with("node n1", Error{ErrorCode::kUnavailable, "no answer", 0});
  EXPECT_EQ(status.error().context, "node n1: no answer");
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace farpage
