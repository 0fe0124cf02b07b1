#include "base/size.h"

#include <gtest/gtest.h>

namespace farpage {
namespace {

TEST(Size, ParsesWhatPeopleWrite) {
  struct Case {
    const char* text;
    uint64_t bytes;
  };
  for (const Case& c : {Case{"0", 0},
                        {"4096", 4096},
                        {"64K", 65536},
                        {"256M", 268435456},
                        {"1G", 1073741824},
                        {"1g", 1073741824},
                        {"1GiB", 1073741824},
                        {"2TB", 2199023255552},
                        {"1.5K", 1536},
                        {"100B", 100}}) {
    const Result<uint64_t> parsed = parse_size(c.text);
    ASSERT_TRUE(parsed.has_value()) << c.text;
    EXPECT_EQ(*parsed, c.bytes) << c.text;
  }
}

TEST(Size, RefusesEverythingElseAndNamesIt) {
  for (const char* text : {"", "M", "-1", "1X", "1.5", "12 M", "1e3", "0x10",
                           "99999999999999999999", "17179869184G", "1..5K", "MiB1", "1iB"}) {
    const Result<uint64_t> parsed = parse_size(text);
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_NE(parsed.error().context.find(std::string("'") + text + "'"), std::string::npos);
  }
}

TEST(Size, FormatsTheShortestForm) {
  EXPECT_EQ(format_size(1000), "1000");
  EXPECT_EQ(format_size(65536), "64K");
  EXPECT_EQ(format_size(67108864), "64M");
  EXPECT_EQ(format_size(1536), "1.5K");
  EXPECT_EQ(format_size(uint64_t{3} << 40), "3T");
}

}  // namespace
}  // namespace farpage
