#include "pager/access_trace.h"

#include <gtest/gtest.h>

#include <cstring>

namespace farpage::pager {
namespace {

AccessTrace small_trace() {
  AccessTrace trace(10);
  trace.add({3, AccessKind::kWrite});
  trace.end_warm_up();
  trace.add({9, AccessKind::kRead});
  trace.add({0, AccessKind::kDiscard});
  return trace;
}

TEST(AccessTrace, BytesAreThoseOfItsDescription) {
  const std::vector<std::byte> bytes = small_trace().encode();
  ASSERT_EQ(bytes.size(), 32U + 3 * 4);
  EXPECT_EQ(std::memcmp(bytes.data(), "FPTRACE2", 8), 0);
  const auto number = [&](size_t offset, size_t length) {
    uint64_t value = 0;
    for (size_t i = 0; i < length; ++i)
      value |= std::to_integer<uint64_t>(bytes[offset + i]) << (8 * i);
    return value;
  };
  EXPECT_EQ(number(8, 8), 10U);
  EXPECT_EQ(number(16, 8), 3U);
  EXPECT_EQ(number(24, 8), 1U);
  EXPECT_EQ(number(32, 4), 3U * 4 + 1);
  EXPECT_EQ(number(36, 4), 9U * 4);
  EXPECT_EQ(number(40, 4), 2U);
}

TEST(AccessTrace, IsTheSameAfterAFile) {
  const std::string path = testing::TempDir() + "access_trace";
  const AccessTrace trace = small_trace();
  ASSERT_TRUE(trace.write_file(path));
  const Result<AccessTrace> read = AccessTrace::read_file(path);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(*read, trace);
  EXPECT_EQ((*read)[1], (PageAccess{9, AccessKind::kRead}));
  std::remove(path.c_str());
}

TEST(AccessTrace, LargestPageNumberIsKept) {
  AccessTrace trace(kMaxTracePages);
  trace.add({static_cast<uint32_t>(kMaxTracePages - 1), AccessKind::kWrite});
  const Result<AccessTrace> decoded = AccessTrace::decode(trace.encode());
  ASSERT_TRUE(decoded) << decoded.error().message();
  EXPECT_EQ((*decoded)[0].page, kMaxTracePages - 1);
}

TEST(AccessTrace, WhatIsNoTraceIsRefused) {
  const std::vector<std::byte> good = small_trace().encode();
  const auto expect_refused = [](const std::vector<std::byte>& bytes, const char* what) {
    const Result<AccessTrace> trace = AccessTrace::decode(bytes);
    ASSERT_FALSE(trace) << what;
    EXPECT_EQ(trace.error().code, ErrorCode::kInvalid) << what;
  };
  const auto with_byte = [&](size_t offset, uint8_t value) {
    std::vector<std::byte> bytes = good;
    bytes[offset] = std::byte{value};
    return bytes;
  };
  ASSERT_TRUE(AccessTrace::decode(good));
  for (size_t length = 0; length < good.size(); ++length)
    expect_refused({good.begin(), good.begin() + static_cast<ptrdiff_t>(length)}, "cut off");
  std::vector<std::byte> longer = good;
  longer.push_back(std::byte{0});
  expect_refused(longer, "too long");
  expect_refused(with_byte(0, 'f'), "magic");
  expect_refused(with_byte(8, 0), "no pages");
  expect_refused(with_byte(8, 9), "a page that is too high");
  expect_refused(with_byte(12, 1), "more pages than a trace may have");
  expect_refused(with_byte(16, 4), "more accesses than there are");
  expect_refused(with_byte(23, 0xFF), "a length that overflows");
  expect_refused(with_byte(24, 4), "a warm-up that is too long");
  EXPECT_FALSE(AccessTrace::read_file("/nonexistent/trace"));
}

}  // namespace
}  // namespace farpage::pager
