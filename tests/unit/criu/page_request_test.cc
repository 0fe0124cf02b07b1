#include "criu/page_request.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace farpage::criu {
namespace {

constexpr uint32_t kGet = 7;
constexpr uint32_t kClose = 0x1023;

template <typename... Values>
std::vector<std::byte> message(Values... values) {
  std::vector<std::byte> bytes;
  const auto add = [&](auto value) {
    const auto* first = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), first, first + sizeof value);
  };
  (add(values), ...);
  return bytes;
}

std::vector<std::byte> narrow(uint32_t command, uint32_t pages, uint64_t address,
                              uint64_t process) {
  return message(command, pages, address, process);
}

std::vector<std::byte> wide(uint32_t command, uint64_t pages, uint64_t address, uint64_t process) {
  return message(command, uint32_t{0xdead}, pages, address, process);
}

std::vector<std::byte> joined(const std::vector<std::vector<std::byte>>& messages) {
  std::vector<std::byte> bytes;
  for (const auto& each : messages) bytes.insert(bytes.end(), each.begin(), each.end());
  return bytes;
}

std::vector<PageRequest> all_of(RequestReader& reader) {
  std::vector<PageRequest> requests;
  while (const auto request = reader.next()) requests.push_back(*request);
  return requests;
}

const PageRequest kOne{PageRequest::Kind::kPages, 1, 0x7f0000000000, 146};
const PageRequest kMany{PageRequest::Kind::kPages, 1024, 0x7f0000001000, 147};
const PageRequest kEnd{PageRequest::Kind::kEnd, 0, 0, 0};

TEST(PageRequest, BothFormsAreReadInAnyParts) {
  const auto of_narrow = joined({narrow(kGet, 1, kOne.address, 146),
                                 narrow(kGet, 1024, kMany.address, 147), narrow(kClose, 0, 0, 0)});
  const auto of_wide = joined({wide(kGet, 1, kOne.address, 146),
                               wide(kGet, 1024, kMany.address, 147), wide(kClose, 0, 0, 0)});
  for (const auto& [bytes, form] :
       {std::pair(of_narrow, MessageForm::kNarrow), std::pair(of_wide, MessageForm::kWide)}) {
    for (size_t part = 1; part <= bytes.size(); ++part) {
      RequestReader reader;
      for (size_t at = 0; at < bytes.size(); at += part) {
        const auto added =
            reader.add(std::span(bytes).subspan(at, std::min(part, bytes.size() - at)));
        ASSERT_TRUE(added.has_value()) << added.error().message();
      }
      EXPECT_EQ(all_of(reader), (std::vector<PageRequest>{kOne, kMany, kEnd})) << part;
      EXPECT_EQ(reader.form(), form);
    }
  }
}

TEST(PageRequest, WhoAsksForNothingEndsInBothForms) {
  for (const auto& bytes :
       {narrow(kClose, 0, 0, 0), wide(kClose, 0, 0, 0), narrow(0x1024, 0, 0, 0)}) {
    RequestReader reader;
    EXPECT_TRUE(reader.add(bytes).has_value());
    EXPECT_TRUE(reader.add(bytes).has_value()) << "what follows is ignored";
    EXPECT_EQ(all_of(reader), std::vector<PageRequest>{kEnd});
  }
}

TEST(PageRequest, WrongRequestsAreRefusedByTheirField) {
  const auto error_of = [](const std::vector<std::byte>& bytes) {
    RequestReader reader;
    const Status added = reader.add(bytes);
    return added ? std::string("none") : added.error().context;
  };
  EXPECT_EQ(error_of(narrow(kGet, 0, 4096, 1)), "nr_pages: 0 is not 1 to 4095");
  EXPECT_EQ(error_of(narrow(kGet, 4095, 4096, 1)), "none");
  EXPECT_EQ(error_of(narrow(kGet, 4096, 4096, 1)), "nr_pages: 4096 is not 1 to 4095");
  EXPECT_EQ(error_of(narrow(kGet, 1, 4097, 1)), "vaddr: 0x1001 is no address of a page");
  EXPECT_EQ(error_of(narrow(kGet, 1, uint64_t{1} << 56, 1)),
            "vaddr: 0x100000000000000 is no address of a page");
  EXPECT_EQ(error_of(narrow(4, 0, 0, 1)),
            "command 4 (OPEN2): this server gives pages and takes none: is that criu lazy-pages?");
  EXPECT_EQ(error_of(message(uint32_t{0x16030102})),
            "command 0x16030102: that is not criu lazy-pages, or one with --tls");
  EXPECT_EQ(error_of(message(uint16_t{0xffff})), "none") << "too short to tell";
}

TEST(PageRequest, RequestsBeforeAWrongOneCanBeTaken) {
  RequestReader reader;
  EXPECT_FALSE(
      reader.add(joined({narrow(kGet, 1, kOne.address, 146), narrow(99, 0, 0, 0)})).has_value());
  EXPECT_EQ(all_of(reader), std::vector<PageRequest>{kOne});
}

TEST(PageRequest, OnlySoManyRequestsWait) {
  RequestReader reader;
  const auto one = narrow(kGet, 1, kOne.address, 146);
  size_t added = 0;
  for (; reader.has_room(); ++added) ASSERT_TRUE(reader.add(one).has_value());
  EXPECT_EQ(added, RequestReader::kMaxWaiting);
  EXPECT_EQ(reader.next(), kOne);
  EXPECT_TRUE(reader.has_room());
}

TEST(PageRequest, AnswerHasTheFormOfTheRequest) {
  constexpr uint32_t kAddPresent = 0x40006;
  EXPECT_EQ(encode_answer(MessageForm::kNarrow, kMany),
            narrow(kAddPresent, 1024, kMany.address, 147));
  EXPECT_EQ(encode_answer(MessageForm::kWide, kMany),
            message(kAddPresent, uint32_t{0}, uint64_t{1024}, kMany.address, uint64_t{147}));
  EXPECT_EQ(encode_end(), message(uint32_t{0}));
}

}  // namespace
}  // namespace farpage::criu
