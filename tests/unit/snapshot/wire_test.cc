#include "snapshot/wire.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <random>

#include "base/unix_socket.h"

namespace farpage::snapshot {
namespace {

std::string region(const std::string& address, const std::string& size, const std::string& offset,
                   const std::string& more = "") {
  return "{\"base_host_virt_addr\":" + address + ",\"size\":" + size + ",\"offset\":" + offset +
         more + "}";
}

TEST(Wire, EveryVersionsMessageIsRead) {
  for (const char* more :
       {"", R"(,"page_size_kib":4)", R"(,"page_size_kib":4096)",
        R"(,"page_size":4096,"page_size_kib":4096)", R"(,"page_size":4096,"comes_later":[1,{}])"}) {
    const auto regions =
        decode_regions("[" + region("140062213218304", "134217728", "0", more) + "]");
    ASSERT_TRUE(regions.has_value()) << more << regions.error().message();
    EXPECT_EQ(*regions, (std::vector<GuestRegion>{{140062213218304, 134217728, 0}})) << more;
  }
}

TEST(Wire, RegionsAreSortedByAddress) {
  const auto regions = decode_regions("[" + region("1048576", "4096", "0") + "," +
                                      region("65536", "8192", "4096") + "]");
  ASSERT_TRUE(regions.has_value());
  EXPECT_EQ((*regions)[0].address, 65536U);
  EXPECT_EQ((*regions)[1].address, 1048576U);
}

TEST(Wire, WrongRegionsAreRefused) {
  const std::string good = region("65536", "4096", "0");
  std::string many = "[" + good;
  for (size_t i = 1; i <= kMaxRegions; ++i)
    many += "," + region(std::to_string(65536 + i * 4096), "4096", std::to_string(i * 4096));
  const std::string cases[] = {
      "",
      "[]",
      "{}",
      "null",
      "[null]",
      "[1]",
      "[[]]",
      "[{}]",
      "[" + good,
      "[" + good + "]]",
      "[" + good + "],\"regions\":[]",
      "[" + good + "]}",
      "[" + region("-65536", "4096", "0") + "]",
      "[" + region("65536.0", "4096", "0") + "]",
      "[" + region("6.5536e4", "4096", "0") + "]",
      "[" + region("\"65536\"", "4096", "0") + "]",
      "[" + region("0", "4096", "0") + "]",
      "[" + region("65537", "4096", "0") + "]",
      "[" + region("65536", "0", "0") + "]",
      "[" + region("65536", "4095", "0") + "]",
      "[" + region("65536", "4096", "1") + "]",
      "[" + region("18446744073709547520", "4096", "0") + "]",
      "[" + region("65536", "18446744073709547520", "0") + "]",
      "[" + region("65536", "4096", "18446744073709547520") + "]",
      "[" + region("65536", "99999999999999999999", "0") + "]",
      "[" + region("65536", "8192", "0") + "," + region("69632", "4096", "8192") + "]",
      "[" + region("65536", "8192", "0") + "," + region("81920", "4096", "4096") + "]",
      "[" + good + "," + good + "]",
      R"([{"base_host_virt_addr":65536,"size":4096,"size":8192,"offset":0}])",
      R"([{"base_host_virt_addr":65536,"size":4096}])",
      many + "]",
  };
  for (const std::string& message : cases) {
    const auto regions = decode_regions(message);
    ASSERT_FALSE(regions.has_value()) << message;
    EXPECT_EQ(regions.error().code, ErrorCode::kInvalid) << message;
    EXPECT_FALSE(regions.error().context.empty());
  }
}

TEST(Wire, PagesOfTwoMebibytesAreWhole) {
  for (const char* more :
       {R"(,"page_size":2097152)", R"(,"page_size_kib":2048)", R"(,"page_size_kib":2097152)",
        R"(,"page_size":2097152,"page_size_kib":4096)"}) {
    const auto regions = decode_regions("[" + region("4194304", "2097152", "0", more) + "]");
    ASSERT_TRUE(regions.has_value()) << more << regions.error().message();
    EXPECT_EQ((*regions)[0].page_bytes, kHugePageBytes);
    for (const auto& [address, bytes, offset] : {std::array{"4198400", "2097152", "0"},
                                                 {"4194304", "2101248", "0"},
                                                 {"4194304", "2097152", "4096"}}) {
      const auto refused = decode_regions("[" + region(address, bytes, offset, more) + "]");
      ASSERT_FALSE(refused.has_value()) << address << more;
      EXPECT_EQ(refused.error().code, ErrorCode::kInvalid);
    }
  }
}

TEST(Wire, OtherPagesAreRefused) {
  const std::string huge = region("4194304", "2097152", "0", R"(,"page_size":2097152)");
  for (const std::string& text :
       {region("1073741824", "1073741824", "0", R"(,"page_size":1073741824)"),
        region("65536", "65536", "0", R"(,"page_size_kib":16)"),
        huge + "," + region("65536", "4096", "2097152")}) {
    const auto regions = decode_regions("[" + text + "]");
    ASSERT_FALSE(regions.has_value()) << text;
    EXPECT_EQ(regions.error().code, ErrorCode::kUnsupported);
  }
}

TEST(Wire, EndOfTheArrayIsFoundWhateverTheParts) {
  const std::string text = " \n[{\"a\":\"]\\\"[\",\"b\":[1,[2]]},{}]";
  for (size_t part = 1; part <= text.size(); ++part) {
    ArrayEnd end;
    for (size_t at = 0; at < text.size(); at += part) {
      EXPECT_FALSE(end.found());
      ASSERT_TRUE(end.take(text.substr(at, part)));
    }
    EXPECT_TRUE(end.found());
    EXPECT_EQ(end.length(), text.size());
    EXPECT_TRUE(end.take(" \n"));
    EXPECT_EQ(end.length(), text.size());
    EXPECT_FALSE(end.take("[")) << "a second message";
  }
}

TEST(Wire, WhatIsNoArrayIsRefusedAtItsFirstByte) {
  for (const char* text : {"{", "1", "\"", "]", "x"}) {
    ArrayEnd end;
    EXPECT_FALSE(end.take(text)) << text;
  }
  ArrayEnd deep;
  EXPECT_FALSE(deep.take(std::string(100, '[')));
}

// A VMM's end of a socket, and ours.
class HandoverTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    vmm_ = Fd(ends[0]);
    handover_ = std::make_unique<Handover>(Fd(ends[1]), ucred{1, 0, 0});
  }
  void send(std::string_view text, bool with_descriptor = false) {
    const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    EXPECT_EQ(send_with_descriptor(vmm_.get(), bytes, with_descriptor ? null.get() : -1),
              static_cast<ssize_t>(text.size()));
  }
  void expect_waiting() {
    const Result<bool> got = handover_->read();
    ASSERT_TRUE(got.has_value()) << got.error().message();
    EXPECT_FALSE(*got);
  }
  void expect_complete(std::string_view message) {
    const Result<bool> got = handover_->read();
    ASSERT_TRUE(got.has_value()) << got.error().message();
    EXPECT_TRUE(*got);
    EXPECT_EQ(handover_->message(), message);
    EXPECT_TRUE(handover_->take_descriptor().valid());
  }
  ErrorCode failure() {
    const Result<bool> got = handover_->read();
    return got ? ErrorCode::kIo : got.error().code;
  }

  Fd vmm_;
  std::unique_ptr<Handover> handover_;
};

TEST_F(HandoverTest, ComesAtOnce) {
  send("[{}]", true);
  expect_complete("[{}]");
}

TEST_F(HandoverTest, ComesInPartsAndTheDescriptorWithAnyOfThem) {
  for (size_t with = 0; with < 5; ++with) {
    SetUp();
    const std::string text = "[{}] ";
    for (size_t i = 0; i < text.size(); ++i) {
      expect_waiting();
      send(text.substr(i, 1), i == with);
      if (i >= 3 && i >= with) {
        expect_complete("[{}]");
        break;
      }
    }
  }
}

TEST_F(HandoverTest, ClosedSocketIsAFailureAtAnyMoment) {
  vmm_.reset();
  EXPECT_EQ(failure(), ErrorCode::kUnavailable);
  SetUp();
  send("[{}", true);
  vmm_.reset();
  EXPECT_EQ(failure(), ErrorCode::kUnavailable);
  SetUp();
  send("[{}]");
  vmm_.reset();
  EXPECT_EQ(failure(), ErrorCode::kUnavailable) << "without a descriptor";
}

TEST_F(HandoverTest, ARequestIsNoVmmAndStaysInTheSocket) {
  send("{\"version\": 1");
  expect_waiting();
  EXPECT_TRUE(handover_->is_request());
  const Fd socket = handover_->take_socket();
  std::array<char, 64> text;
  ASSERT_EQ(::recv(socket.get(), text.data(), text.size(), MSG_DONTWAIT), 13);
  EXPECT_EQ(std::string_view(text.data(), 13), "{\"version\": 1");
  SetUp();
  send("{}", true);
  EXPECT_EQ(failure(), ErrorCode::kInvalid) << "with a descriptor it is a VMM";
  SetUp();
  send("[{}");
  expect_waiting();
  EXPECT_FALSE(handover_->is_request());
}

TEST_F(HandoverTest, SecondDescriptorIsRefused) {
  send("[", true);
  expect_waiting();
  send("{}", true);
  EXPECT_EQ(failure(), ErrorCode::kInvalid);
}

TEST_F(HandoverTest, MessageOfMoreThan64KiBIsRefused) {
  send("[");
  const std::string blanks(4095, ' ');
  for (size_t sent = 1; sent + blanks.size() <= kMaxMessageBytes; sent += blanks.size()) {
    send(blanks);
    expect_waiting();
  }
  send(blanks);
  EXPECT_EQ(failure(), ErrorCode::kExhausted);
}

// Messages with damage: each is refused, or is regions that keep every promise of decode_regions().
TEST(Wire, RandomlyDamagedMessagesNeverBreakAPromise) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::string good = "[" +
                           region("140062213218304", "134217728", "0", ",\"page_size\":4096") +
                           "," + region("140071213219840", "8192", "134217728") + "]";
  const std::string tokens[] = {"[",
                                "]",
                                "{",
                                "}",
                                ",",
                                ":",
                                "\"",
                                "\\",
                                "0",
                                "9",
                                "-",
                                "e",
                                ".",
                                "null",
                                "18446744073709551615",
                                "4096",
                                "\"size\"",
                                "\"offset\"",
                                std::string(1, '\0'),
                                "\xff"};
  ASSERT_TRUE(decode_regions(good).has_value()) << decode_regions(good).error().message();
  size_t accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string message = good;
    for (uint64_t edits = random() % 4; edits > 0; --edits) {
      const size_t at = random() % (message.size() + 1);
      const size_t length = std::min<size_t>(random() % 4, message.size() - at);
      message.replace(at, length, tokens[random() % std::size(tokens)]);
    }
    ArrayEnd end;
    if (!end.take(message) || !end.found()) continue;
    const auto regions = decode_regions(message.substr(0, end.length()));
    if (!regions) continue;
    ++accepted;
    ASSERT_GE(regions->size(), 1U);
    ASSERT_LE(regions->size(), kMaxRegions);
    for (size_t r = 0; r < regions->size(); ++r) {
      const GuestRegion& one = (*regions)[r];
      ASSERT_EQ((one.address | one.bytes | one.offset) % 4096, 0U) << message;
      ASSERT_GT(one.bytes, 0U) << message;
      ASSERT_LT(one.address + one.bytes, uint64_t{1} << 58) << message;
      if (r == 0) continue;
      ASSERT_LE((*regions)[r - 1].address + (*regions)[r - 1].bytes, one.address) << message;
    }
  }
  EXPECT_GT(accepted, 1000U) << "those without an edit at least";
}

}  // namespace
}  // namespace farpage::snapshot
