#include "rdma/log_limiter.h"

#include <gtest/gtest.h>

namespace farpage::rdma {
namespace {

TEST(LogLimiter, HoldsLinesBackAndSaysHowMany) {
  LogLimiter limiter;
  const Instant start = Seconds(100);
  for (uint32_t i = 0; i < LogLimiter::kMaxLinesPerInterval; ++i)
    EXPECT_EQ(limiter.allow(start), uint64_t{0});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(limiter.allow(start), std::nullopt);
  EXPECT_EQ(limiter.allow(start + LogLimiter::kInterval - Nanoseconds(1)), std::nullopt);
  EXPECT_EQ(limiter.allow(start + LogLimiter::kInterval), uint64_t{6});
  EXPECT_EQ(limiter.allow(start + LogLimiter::kInterval), uint64_t{0});
}

}  // namespace
}  // namespace farpage::rdma
