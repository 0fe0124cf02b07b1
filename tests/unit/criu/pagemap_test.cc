#include "criu/pagemap.h"

#include <gtest/gtest.h>

#include <string>

namespace farpage::criu {
namespace {

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

std::string record(const std::string& message) {
  const auto length = static_cast<uint32_t>(message.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + message;
}

const std::string kMagic("\x19\x43\x56\x54\x25\x40\x08\x56", 8);
const std::string kHead = record("\x08\x01");

std::string error_of(const std::string& file) {
  const auto decoded = decode_pagemap(bytes_of(file));
  return decoded ? "none" : decoded.error().context;
}

// The first records of a file that criu 3.17.1 has written.
TEST(CriuPagemap, FileOfCriuIsRead) {
  const std::string file = kMagic + kHead +
                           record("\x08\x80\xe0\x84\xbf\xca\xb3\x15\x10\x01\x20\x04") +
                           record("\x08\x80\xa0\x85\xbf\xca\xb3\x15\x10\x02\x20\x04") +
                           record("\x08\x80\x80\xe4\x86\xce\xb3\x15\x10\x02\x20\x06") +
                           record("\x08\x80\xe0\xae\x8e\xa2\xe5\x1f\x10\xfe\x07\x20\x06");
  const auto decoded = decode_pagemap(bytes_of(file));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message();
  EXPECT_EQ(decoded->pages_file, 1U);
  EXPECT_EQ(decoded->ranges, (std::vector<PagemapRange>{{0x559ca7e13000, 1, kPresent},
                                                        {0x559ca7e15000, 2, kPresent},
                                                        {0x559ce0d90000, 2, kPresent | kLazy},
                                                        {0x7f2a21cbb000, 1022, kPresent | kLazy}}));
  EXPECT_EQ(decoded->present_pages(), 1027U);
  const auto again = encode_pagemap(*decoded);
  EXPECT_EQ(again, bytes_of(file)) << "what is written is what criu would write";
}

TEST(CriuPagemap, IsDecodedAsItWasEncoded) {
  const Pagemap pagemap{7,
                        {{0x10000, 1, kPresent},
                         {0x559ca7e15000, 2, kPresent | kLazy},
                         {0x7f2a21cbb000, 0xffffffff, kLazy},
                         {kMaxAddress - 8192, 2, kInParent}}};
  const auto decoded = decode_pagemap(encode_pagemap(pagemap));
  ASSERT_TRUE(decoded.has_value()) << decoded.error().message();
  EXPECT_EQ(*decoded, pagemap);
  EXPECT_EQ(decoded->present_pages(), 3U);
}

TEST(CriuPagemap, FieldsOfOtherVersionsAreUnderstood) {
  // nr_pages of 64 bits (criu 4.2), and fields that come later, of all types.
  const std::string later("\x31\x01\x02\x03\x04\x05\x06\x07\x08\x3a\x02xy\x45\x01\x02\x03\x04", 18);
  const auto wide = decode_pagemap(bytes_of(
      kMagic + kHead + record(std::string("\x08\x80\x20\x10\x00\x20\x06\x28\x05", 9) + later)));
  ASSERT_TRUE(wide.has_value()) << wide.error().message();
  EXPECT_EQ(wide->ranges, (std::vector<PagemapRange>{{4096, 5, kPresent | kLazy}}));
  // Before there were flags, all that is not in a parent is present.
  const auto old = decode_pagemap(bytes_of(kMagic + kHead + record("\x08\x80\x20\x10\x01") +
                                           record("\x08\x80\x40\x10\x01\x18\x01")));
  ASSERT_TRUE(old.has_value()) << old.error().message();
  EXPECT_TRUE(old->ranges[0].flags == kPresent);
  EXPECT_TRUE(old->ranges[1].is(kInParent));
}

TEST(CriuPagemap, WrongFilesAreRefusedWithTheirPlace) {
  const std::string range = record("\x08\x80\x20\x10\x02");
  EXPECT_EQ(error_of(""), "it is no pagemap of criu (1.3 or later)");
  EXPECT_EQ(error_of(std::string(8, '\0') + kHead), "it is no pagemap of criu (1.3 or later)");
  EXPECT_EQ(error_of(kMagic), "it has no record");
  EXPECT_EQ(error_of(kMagic + "\x02"), "record 0 at byte 8: its length is cut off");
  EXPECT_EQ(error_of(kMagic + std::string("\x02\0\0\0\x08", 5)),
            "record 0 at byte 8: it is cut off");
  EXPECT_EQ(error_of(kMagic + std::string("\xff\xff\0\0", 4)),
            "record 0 at byte 8: it is longer than 4096 bytes");
  EXPECT_EQ(error_of(kMagic + record("\x10\x01")),
            "record 0 at byte 8: pages_id is missing or too large");
  const std::string start = kMagic + kHead;
  EXPECT_EQ(error_of(start + record("\x08")), "record 1 at byte 14: it is damaged");
  EXPECT_EQ(error_of(start + record("\x0c\x01")), "record 1 at byte 14: it is damaged");
  EXPECT_EQ(error_of(start + record("\x3a\x05xy")), "record 1 at byte 14: it is damaged");
  EXPECT_EQ(error_of(start + record("\x10\x01")), "record 1 at byte 14: vaddr is missing");
  EXPECT_EQ(error_of(start + record("\x08\x80\x20")), "record 1 at byte 14: nr_pages is missing");
  EXPECT_EQ(error_of(start + record("\x08\x81\x20\x10\x02")),
            "record 1 at byte 14: vaddr is not that of a page");
  EXPECT_EQ(error_of(start + range + range),
            "record 2 at byte 23: vaddr is not behind the range before");
  EXPECT_EQ(error_of(start + record(std::string("\x08\x80\x20\x10\x00", 5))),
            "record 1 at byte 14: nr_pages is not 1 to 4294967295");
  EXPECT_EQ(error_of(start + record("\x08\x80\xe0\xff\xff\xff\xff\xff\xff\x00\x10\x02")),
            "record 1 at byte 14: it is damaged");
  EXPECT_EQ(error_of(start + record("\x08\x80\xe0\xff\xff\xff\xff\xff\x7f\x10\x02")),
            "record 1 at byte 14: it ends behind the last address");
}

}  // namespace
}  // namespace farpage::criu
