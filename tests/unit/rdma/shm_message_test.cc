#include "rdma/shm/shm_message.h"

#include <gtest/gtest.h>

#include <vector>

namespace farpage::rdma::shm {
namespace {

template <size_t N>
std::array<std::byte, N> with(std::array<std::byte, N> bytes, size_t at, uint8_t value) {
  bytes[at] = std::byte{value};
  return bytes;
}

TEST(ShmMessage, RequestComesBackAsItWas) {
  const Request sent{kProtocolVersion, RequestKind::kAttach, {0xdeadbeef}, {7}};
  const std::optional<Request> request = decode_request(encode(sent));
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->kind, RequestKind::kAttach);
  EXPECT_EQ(request->key, sent.key);
  EXPECT_EQ(request->generation, sent.generation);
}

TEST(ShmMessage, HelloCarriesTheWholeSession) {
  const std::optional<Request> hello =
      decode_request(encode(Request{.session = 0x0123456789abcdef}));
  ASSERT_TRUE(hello.has_value());
  EXPECT_EQ(hello->kind, RequestKind::kHello);
  EXPECT_EQ(hello->session, 0x0123456789abcdefU);
}

TEST(ShmMessage, ReplyComesBackAsItWas) {
  const Reply sent{kProtocolVersion, ReplyStatus::kOk, kMaxAttachments - 1, 99,
                   0x7f0000000000,   1 << 26};
  const std::optional<Reply> reply = decode_reply(encode(sent));
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->slot, sent.slot);
  EXPECT_EQ(reply->lease, sent.lease);
  EXPECT_EQ(reply->address, sent.address);
  EXPECT_EQ(reply->bytes, sent.bytes);
}

TEST(ShmMessage, MalformedRequestIsNotTaken) {
  const auto attach = encode(Request{kProtocolVersion, RequestKind::kAttach, {1}, {1}});
  EXPECT_FALSE(decode_request(with(attach, 0, 0)).has_value()) << "magic";
  EXPECT_FALSE(decode_request(with(attach, 4, 9)).has_value()) << "version";
  EXPECT_FALSE(decode_request(with(attach, 6, 0)).has_value()) << "kind";
  EXPECT_FALSE(decode_request(with(attach, 6, 3)).has_value()) << "kind";
  EXPECT_FALSE(decode_request(std::span(attach).first(15)).has_value()) << "short";
  EXPECT_FALSE(decode_request({}).has_value()) << "empty";
  std::vector<std::byte> longer(attach.begin(), attach.end());
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_request(longer).has_value()) << "long";
  // A hello of another version can be answered.
  EXPECT_TRUE(decode_request(encode(Request{9, RequestKind::kHello, {}, {}})).has_value());
}

TEST(ShmMessage, MalformedReplyIsNotTaken) {
  const auto reply = encode(Reply{});
  EXPECT_FALSE(decode_reply(with(reply, 0, 0)).has_value()) << "magic";
  EXPECT_FALSE(decode_reply(with(reply, 6, 4)).has_value()) << "status";
  EXPECT_FALSE(decode_reply(with(reply, 9, 0x20)).has_value()) << "slot";
  EXPECT_FALSE(decode_reply(with(reply, 12, 1)).has_value()) << "reserved";
  EXPECT_FALSE(decode_reply(std::span(reply).first(39)).has_value()) << "short";
}

}  // namespace
}  // namespace farpage::rdma::shm
