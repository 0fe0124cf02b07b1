#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/fault_bench.h"
#include "bench/ladder.h"
#include "bench/read_bench.h"

namespace farpage::bench {
namespace {

using testing::HasSubstr;

void expect_refused(const Status& status, const std::string& flag) {
  ASSERT_FALSE(status) << flag;
  EXPECT_EQ(status.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(status.error().context, HasSubstr(flag));
}

TEST(FaultOptions, DefaultsAreValidWithAndWithoutEviction) {
  FaultOptions options;
  EXPECT_TRUE(validate(options, {}));
  options.evict = false;
  EXPECT_TRUE(validate(options, {}));
}

TEST(FaultOptions, WrongOnesAreRefusedByTheNameOfTheFlag) {
  const auto with = [](auto change) {
    FaultOptions options;
    change(options);
    return validate(options, {});
  };
  expect_refused(with([](auto& o) { o.threads = 0; }), "--threads");
  expect_refused(with([](auto& o) { o.threads = kMaxThreads + 1; }), "--threads");
  expect_refused(with([](auto& o) { o.iterations = 0; }), "--iterations");
  expect_refused(with([](auto& o) { o.bytes = kPageBytes - 1; }), "--size");
  expect_refused(with([](auto& o) { o.record = true, o.threads = 2; }), "--record");
  expect_refused(with([](auto& o) { o.record = true, o.evict = false; }), "--record");
  expect_refused(with([](auto& o) { o.bytes = kMaxBytes + kPageBytes; }), "--size");
}

TEST(FaultOptions, WithoutEvictionAllMustBeTouchedOnceAndStay) {
  FaultOptions options;
  options.evict = false;
  options.bytes = 10'000 * kPageBytes;  // not more than the iterations, and no page to warm up on
  expect_refused(validate(options, {}), "--iterations");
  options.bytes = uint64_t{256} << 20;
  pager::PagerOptions small;
  small.local_bytes = 10'000 * kPageBytes;
  expect_refused(validate(options, small), "--local");
}

TEST(FaultOptions, WithoutEvictionTheWindowHoldsWhatPushesTheOthersOut) {
  FaultOptions options;
  const pager::PagerOptions pager;
  EXPECT_EQ(window_bytes(options, pager), options.bytes);
  options.evict = false;
  EXPECT_GT(window_bytes(options, pager), options.bytes + pager.local_bytes);
}

TEST(ReadOptions, WrongOnesAreRefusedByTheNameOfTheFlag) {
  const auto with = [](auto change) {
    ReadOptions options;
    change(options);
    return validate(options);
  };
  EXPECT_TRUE(validate(ReadOptions{}));
  EXPECT_TRUE(with([](auto& o) { o.bytes = kMaxOperationBytes; }));
  expect_refused(with([](auto& o) { o.bytes = 0; }), "--bytes");
  expect_refused(with([](auto& o) { o.bytes = 4; }), "--bytes");
  expect_refused(with([](auto& o) { o.bytes = 5000; }), "--bytes");
  expect_refused(with([](auto& o) { o.bytes = 2 * kMaxOperationBytes; }), "--bytes");
  expect_refused(with([](auto& o) { o.depth = 0; }), "--depth");
  expect_refused(with([](auto& o) { o.depth = kMaxDepth + 1; }), "--depth");
  expect_refused(with([](auto& o) { o.depth = o.channel.operations_in_flight + 1; }), "--depth");
  expect_refused(with([](auto& o) { o.iterations = 0; }), "--iterations");
}

TEST(Ladder, OverheadIsTheFaultAboveItsParts) {
  Histogram fault;
  Histogram read;
  Histogram local;
  fault.record(60'000);
  read.record(30'000);
  local.record(20'000);
  const Overhead overhead = overhead_of(fault, read, local);
  EXPECT_NEAR(overhead.floor_us, 50, 0.5);
  EXPECT_NEAR(overhead.above_us(), 10, 1);
  EXPECT_NEAR(overhead.above_percent(), 20, 2);
  EXPECT_EQ(overhead_of(fault, {}, {}).above_percent(), 0);
}

}  // namespace
}  // namespace farpage::bench
