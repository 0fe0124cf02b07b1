#include "share/message.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "http/json_reader.h"

namespace farpage::share {
namespace {

std::string region(const std::string& address, const std::string& size, const std::string& offset,
                   const std::string& more = "") {
  return "{\"base_host_virt_addr\":" + address + ",\"size\":" + size + ",\"offset\":" + offset +
         more + "}";
}

TEST(Message, RegionsAreReadWithTheirMemories) {
  const auto claims = decode_regions(
      "[" + region("140062213218304", "134217728", "0", R"(,"page_size":4096,"later":[1,{}])") +
          "," + region("65536", "8192", "4096", R"(,"memory":1)") + "]",
      2);
  ASSERT_TRUE(claims.has_value()) << claims.error().message();
  ASSERT_EQ(claims->size(), 2U);
  EXPECT_EQ((*claims)[0].address, 140062213218304U);
  EXPECT_EQ((*claims)[0].bytes, 134217728U);
  EXPECT_EQ((*claims)[0].file, 0U);
  EXPECT_EQ((*claims)[1].offset, 4096U);
  EXPECT_EQ((*claims)[1].file, 1U);
}

TEST(Message, OnePlaceOfTwoMemoriesIsNoOverlap) {
  const std::string message = "[" + region("65536", "4096", "0") + "," +
                              region("131072", "4096", "0", R"(,"memory":1)") + "]";
  EXPECT_TRUE(decode_regions(message, 2).has_value());
}

TEST(Message, WrongRegionsAreRefusedWithTheirField) {
  const std::string good = region("65536", "4096", "0");
  std::string many = "[" + good;
  for (size_t i = 1; i <= kMaxRegions; ++i)
    many += "," + region(std::to_string(65536 + i * 4096), "4096", std::to_string(i * 4096));
  const std::pair<std::string, std::string> cases[] = {
      {"", ""},
      {"[" + good, ""},
      {"[" + good + "]]", ""},
      {"[" + good + "],\"more\":[]", ""},
      {"[" + good + "],\"regions\":[]", ""},
      {"[]", "regions"},
      {"{}", "regions"},
      {"[[]]", "regions[0]"},
      {"[{}]", "regions[0].base_host_virt_addr"},
      {many + "]", "regions"},
      {"[" + region("-65536", "4096", "0") + "]", "regions[0].base_host_virt_addr"},
      {"[" + region("65536.0", "4096", "0") + "]", "regions[0].base_host_virt_addr"},
      {"[" + region("0", "4096", "0") + "]", "regions[0].base_host_virt_addr"},
      {"[" + region("65537", "4096", "0") + "]", "regions[0].base_host_virt_addr"},
      {"[" + region("65536", "0", "0") + "]", "regions[0].size"},
      {"[" + region("65536", "6000", "0") + "]", "regions[0].size"},
      {"[" + region("65536", "9223372036854775808", "0") + "]", "regions[0].size"},
      {"[" + region("65536", "4096", "7") + "]", "regions[0].offset"},
      {"[" + region("65536", "4096", "0", R"(,"memory":1)") + "]", "regions[0].memory"},
      {"[" + region("65536", "4096", "0", R"(,"memory":8)") + "]", "regions[0].memory"},
      {"[" + region("65536", "4096", "0", R"(,"page_size":2097152)") + "]", "regions"},
      {"[" + good + "," + region("65536", "4096", "4096") + "]", "regions[1]"},
      {"[" + good + "," + region("131072", "8192", "0") + "]", "regions[1]"}};
  for (const auto& [message, field] : cases) {
    const auto refused = decode_regions(message, 1);
    ASSERT_FALSE(refused.has_value()) << message;
    EXPECT_EQ(http::field_of(refused.error()), field) << message << refused.error().message();
  }
}

TEST(Message, DamagedMessagesAreReadOrRefused) {
  const std::string good = "[" + region("65536", "8192", "0", R"(,"memory":0)") + "," +
                           region("131072", "4096", "8192", R"(,"page_size":4096)") + "]";
  std::mt19937 random(7);
  constexpr std::string_view kBytes = "[]{}\",:0123456789-+.eE\\ntrufalse\x00\xff ";
  size_t read = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string message = good;
    for (uint32_t i = 0, changes = 1 + random() % 4; i < changes && !message.empty(); ++i) {
      const size_t at = random() % message.size();
      if (random() % 3 == 0)
        message.erase(at, 1 + random() % 8);
      else
        message[at] = kBytes[random() % kBytes.size()];
    }
    const auto claims = decode_regions(message, 1);
    if (!claims) continue;
    ++read;
    for (const uffd::SharedClaim& claim : *claims) {
      EXPECT_EQ(claim.file, 0U) << message;
      EXPECT_EQ((claim.address | claim.bytes | claim.offset) % kPageBytes, 0U) << message;
      EXPECT_GT(claim.bytes, 0U) << message;
    }
  }
  EXPECT_GT(read, 0U);
}

TEST(Message, AnswersAreLinesOfJson) {
  for (const std::string& line :
       {accepted_line(32768, 2), released_line(),
        error_line({ErrorCode::kInvalid, "field 'regions[0].size': \xff\"", 0})}) {
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  }
  const auto error = nlohmann::json::parse(
      error_line({ErrorCode::kInvalid, "field 'regions[0].size': must be more", 0}));
  EXPECT_EQ(error["error"]["field"], "regions[0].size");
  EXPECT_EQ(error["error"]["code"], "invalid");
}

}  // namespace
}  // namespace farpage::share
