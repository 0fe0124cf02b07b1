// What the shim reads as text: numbers of the environment, and /proc/self/maps.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <string>

#include "shim/mappings.h"
#include "shim/settings.h"

namespace farpage::shim {
namespace {

TEST(ParseDecimal, TakesDigitsAlone) {
  uint64_t value = 0;
  EXPECT_TRUE(parse_decimal("0", value));
  EXPECT_EQ(value, 0U);
  EXPECT_TRUE(parse_decimal("18446744073709551615", value));
  EXPECT_EQ(value, UINT64_MAX);
  for (const char* bad : {"", "-1", "+1", " 1", "1 ", "1G", "0x10", "18446744073709551616"}) {
    EXPECT_FALSE(parse_decimal(bad, value)) << bad;
  }
}

bool parse(const std::string& line, Mapping& mapping) {
  return parse_mapping(line.data(), line.data() + line.size(), mapping);
}

TEST(ParseMapping, ReadsAddressesProtectionAndKind) {
  Mapping mapping;
  ASSERT_TRUE(parse("7f00a0000000-7f00a0021000 rw-p 00000000 00:00 0 ", mapping));
  EXPECT_EQ(mapping.span.begin, 0x7f00a0000000U);
  EXPECT_EQ(mapping.span.end, 0x7f00a0021000U);
  EXPECT_EQ(mapping.protection, PROT_READ | PROT_WRITE);
  EXPECT_TRUE(mapping.anonymous);
  ASSERT_TRUE(parse("5590-55a0 r-xp 00002000 fe:00 1234   /bin/a file", mapping));
  EXPECT_EQ(mapping.protection, PROT_READ | PROT_EXEC);
  EXPECT_FALSE(mapping.anonymous);
}

TEST(ParseMapping, RefusesEveryCutLine) {
  const std::string line = "7f00a0000000-7f00a0021000 rw-p 00000000 00:00 ";
  for (size_t length = 0; length < line.size() - 1; ++length) {
    Mapping mapping;
    EXPECT_FALSE(parse(line.substr(0, length), mapping)) << length;
  }
}

TEST(FindMapping, JoinsNeighboursOfOneKind) {
  void* memory = mmap(nullptr, 4 * kPageBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const uint64_t begin = reinterpret_cast<uint64_t>(memory);
  // Advice splits the mapping, protection stays; then protection too.
  ASSERT_EQ(madvise(memory, kPageBytes, MADV_DONTFORK), 0);
  ASSERT_EQ(mprotect(static_cast<char*>(memory) + 3 * kPageBytes, kPageBytes, PROT_NONE), 0);
  Mapping mapping;
  ASSERT_EQ(find_mapping({begin, begin + 4 * kPageBytes}, mapping), 0);
  EXPECT_EQ(mapping.span.end, begin + 3 * kPageBytes);
  EXPECT_EQ(mapping.protection, PROT_READ);
  EXPECT_TRUE(mapping.anonymous);
  munmap(memory, 4 * kPageBytes);
  EXPECT_EQ(find_mapping({begin, begin + kPageBytes}, mapping), -EFAULT);
}

}  // namespace
}  // namespace farpage::shim
