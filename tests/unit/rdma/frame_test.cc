#include "rdma/tcp/frame.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "rdma/limits.h"

namespace farpage::rdma::tcp {
namespace {

template <size_t N>
std::array<std::byte, N> with(std::array<std::byte, N> bytes, size_t at, uint8_t value) {
  bytes[at] = std::byte{value};
  return bytes;
}

Request page_read() {
  return {OperationKind::kRead,
          0x1122334455667788,
          {0x7f0011223344},
          {0xdeadbeef, {0x0102030405060708, 0x1112131415161718}},
          {42},
          4096};
}

TEST(Frame, RequestIsLaidOutAsDocumented) {
  const auto bytes = encode(page_read());
  const std::array<uint8_t, kRequestBytes> expected = {
      56,   0,    0,    0,                          // length of the frame
      0x46, 0x41, 0x50, 0x47,                       // "FAPG"
      2,    3,    0,    0,                          // version, READ, status
      0xef, 0xbe, 0xad, 0xde,                       // handle of the key
      42,   0,    0,    0,                          // generation
      8,    7,    6,    5,    4,    3,    2,    1,  // secret of the key
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
      0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  // token
      0x44, 0x33, 0x22, 0x11, 0,    0x7f, 0,    0,     // address
      0,    0x10, 0,    0};                            // data bytes
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_EQ(std::to_integer<uint8_t>(bytes[i]), expected[i]) << "byte " << i;
}

TEST(Frame, EveryMessageComesBackAsItWas) {
  const Decoded<Hello> hello = decode_hello(encode(Hello{9, 64, 0xfedcba9876543210}));
  ASSERT_TRUE(hello.has_value());
  EXPECT_EQ(hello->version, 9);
  EXPECT_EQ(hello->operations_in_flight, 64U);
  EXPECT_EQ(hello->session, 0xfedcba9876543210U);

  const Decoded<Welcome> welcome = decode_welcome(encode(Welcome{1, WireStatus::kVersion, 77}));
  ASSERT_TRUE(welcome.has_value());
  EXPECT_EQ(welcome->status, WireStatus::kVersion);
  EXPECT_EQ(welcome->operation_bytes, 77U);

  for (const OperationKind kind : {OperationKind::kRead, OperationKind::kWrite}) {
    Request sent = page_read();
    sent.kind = kind;
    const Decoded<Request> request = decode_request(encode(sent));
    ASSERT_TRUE(request.has_value());
    EXPECT_EQ(request->kind, kind);
    EXPECT_EQ(request->token, sent.token);
    EXPECT_EQ(request->address, sent.address);
    EXPECT_EQ(request->key, sent.key);
    EXPECT_EQ(request->generation, sent.generation);
    EXPECT_EQ(request->data_bytes, sent.data_bytes);
  }

  const Decoded<Reply> reply = decode_reply(encode(Reply{WireStatus::kOk, 5, 4096}));
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->token, 5U);
  EXPECT_EQ(reply->data_bytes, 4096U);
  const Decoded<Reply> refusal = decode_reply(encode(Reply{WireStatus::kRemoteAccess, 6, 0}));
  ASSERT_TRUE(refusal.has_value());
  EXPECT_EQ(refusal->status, WireStatus::kRemoteAccess);
}

TEST(Frame, HandshakeThatAsksForPackedWritesDiffersInOneBit) {
  const auto hello = encode(Hello{.packs_writes = true});
  EXPECT_EQ(hello, with(encode(Hello{}), 16, 1));
  EXPECT_TRUE(decode_hello(hello)->packs_writes);
  EXPECT_FALSE(decode_hello(encode(Hello{}))->packs_writes);
  const auto welcome = encode(Welcome{.packs_writes = true});
  EXPECT_EQ(welcome, with(encode(Welcome{}), 16, 1));
  EXPECT_TRUE(decode_welcome(welcome)->packs_writes);
  EXPECT_FALSE(decode_welcome(encode(Welcome{}))->packs_writes);
}

TEST(Frame, PackedWriteIsAWriteOfAnotherKindAndLength) {
  Request sent = page_read();
  sent.kind = OperationKind::kWrite;
  auto expected = with(with(encode(sent), 9, 6), 0, 56 + 77);
  expected[1] = std::byte{0};
  sent.packed_bytes = 77;
  EXPECT_EQ(encode(sent), expected);
  const Decoded<Request> request = decode_request(expected);
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->kind, OperationKind::kWrite);
  EXPECT_EQ(request->data_bytes, 4096U);
  EXPECT_EQ(request->packed_bytes, 77U);
  EXPECT_EQ(request->bytes_behind(), 77U);
}

TEST(Frame, PackedWriteOfAnotherLengthThanItsPagesMayHaveIsRefused) {
  struct Case {
    uint32_t data_bytes;
    uint32_t packed_bytes;
    std::optional<FrameFault> fault;
  };
  for (const Case& c : {Case{4096, 3, {}},
                        {4096, 2, FrameFault::kFrameBytes},
                        {4096, 4098, {}},
                        {4096, 4099, FrameFault::kFrameBytes},
                        {8192, 5, FrameFault::kFrameBytes},
                        {8192, 6, {}},
                        {kMaxOperationBytes, 256 * 4098, {}},
                        {kMaxOperationBytes, 256 * 4098 + 1, FrameFault::kFrameBytes},
                        {kMaxOperationBytes, 0xffffffff - 56, FrameFault::kFrameBytes},
                        {kMaxOperationBytes + 4096, 5000, FrameFault::kDataBytes},
                        {4095, 100, FrameFault::kDataBytes},
                        {4097, 100, FrameFault::kDataBytes},
                        {0, 100, FrameFault::kDataBytes}}) {
    Request request = page_read();
    request.kind = OperationKind::kWrite;
    request.data_bytes = c.data_bytes;
    request.packed_bytes = c.packed_bytes;
    const Decoded<Request> decoded = decode_request(encode(request));
    ASSERT_EQ(decoded.has_value(), !c.fault) << c.data_bytes << " as " << c.packed_bytes;
    if (c.fault) {
      EXPECT_EQ(decoded.error(), *c.fault) << c.data_bytes << " as " << c.packed_bytes;
    }
  }
}

TEST(Frame, RequestAtTheLimitsIsTakenAndBeyondThemIsNot) {
  struct Case {
    uint32_t data_bytes;
    bool good;
  };
  for (const Case& c : {Case{0, false},
                        {1, true},
                        {kMaxOperationBytes, true},
                        {kMaxOperationBytes + 1, false},
                        {0xffffffff, false}}) {
    for (const OperationKind kind : {OperationKind::kRead, OperationKind::kWrite}) {
      Request request = page_read();
      request.kind = kind;
      request.data_bytes = c.data_bytes;
      const Decoded<Request> decoded = decode_request(encode(request));
      EXPECT_EQ(decoded.has_value(), c.good) << c.data_bytes;
      if (!c.good) {
        EXPECT_EQ(decoded.error(), FrameFault::kDataBytes);
      }
    }
  }
}

TEST(Frame, RequestWithAWrongFieldIsRefusedForThatField) {
  const auto good = encode(page_read());
  struct Case {
    size_t at;
    uint8_t value;
    FrameFault fault;
  };
  for (const Case& c : {Case{0, 55, FrameFault::kFrameBytes},
                        {0, 57, FrameFault::kFrameBytes},
                        {3, 0x80, FrameFault::kFrameBytes},
                        {4, 0, FrameFault::kWrongMagic},
                        {7, 0xff, FrameFault::kWrongMagic},
                        {8, 0, FrameFault::kWrongVersion},
                        {8, 1, FrameFault::kWrongVersion},
                        {8, 3, FrameFault::kWrongVersion},
                        {9, 0, FrameFault::kUnexpectedKind},
                        {9, 1, FrameFault::kUnexpectedKind},
                        {9, 5, FrameFault::kUnexpectedKind},
                        {9, 255, FrameFault::kUnexpectedKind},
                        {9, 7, FrameFault::kUnexpectedKind},
                        {9, 6, FrameFault::kFrameBytes},
                        {9, 4, FrameFault::kFrameBytes},  // a WRITE has its data in the frame
                        {10, 1, FrameFault::kUnknownStatus},
                        {11, 1, FrameFault::kUnknownStatus}}) {
    const Decoded<Request> decoded = decode_request(with(good, c.at, c.value));
    ASSERT_FALSE(decoded.has_value()) << "byte " << c.at;
    EXPECT_EQ(decoded.error(), c.fault) << "byte " << c.at;
  }
}

TEST(Frame, ReplyWithAWrongFieldIsRefusedForThatField) {
  const auto read = encode(Reply{WireStatus::kOk, 5, 4096});
  EXPECT_EQ(decode_reply(with(read, 0, 0)).error(), FrameFault::kFrameBytes);
  EXPECT_EQ(decode_reply(with(read, 5, 0)).error(), FrameFault::kWrongMagic);
  EXPECT_EQ(decode_reply(with(read, 8, 3)).error(), FrameFault::kWrongVersion);
  EXPECT_EQ(decode_reply(with(read, 9, 3)).error(), FrameFault::kUnexpectedKind);
  EXPECT_EQ(decode_reply(with(read, 10, 9)).error(), FrameFault::kUnknownStatus);
  EXPECT_EQ(decode_reply(with(read, 10, 2)).error(), FrameFault::kUnknownStatus);
  EXPECT_EQ(decode_reply(with(read, 23, 0xff)).error(), FrameFault::kDataBytes);
  // A refusal carries no data.
  EXPECT_EQ(decode_reply(encode(Reply{WireStatus::kRemoteAccess, 5, 1})).error(),
            FrameFault::kDataBytes);
  EXPECT_TRUE(decode_reply(encode(Reply{WireStatus::kOk, 5, kMaxOperationBytes})).has_value());
  EXPECT_EQ(decode_reply(encode(Reply{WireStatus::kOk, 5, kMaxOperationBytes + 1})).error(),
            FrameFault::kDataBytes);
}

TEST(Frame, HandshakeWithAWrongFieldIsRefusedForThatField) {
  const auto hello = encode(Hello{});
  EXPECT_EQ(decode_hello(with(hello, 0, 20)).error(), FrameFault::kFrameBytes);
  EXPECT_EQ(decode_hello(with(hello, 4, 0)).error(), FrameFault::kWrongMagic);
  EXPECT_EQ(decode_hello(with(hello, 9, 2)).error(), FrameFault::kUnexpectedKind);
  EXPECT_EQ(decode_hello(with(hello, 10, 1)).error(), FrameFault::kUnknownStatus);
  EXPECT_EQ(decode_hello(with(hello, 16, 2)).error(), FrameFault::kReserved);
  EXPECT_EQ(decode_hello(with(hello, 19, 1)).error(), FrameFault::kReserved);
  const auto welcome = encode(Welcome{});
  EXPECT_EQ(decode_welcome(with(welcome, 0, 19)).error(), FrameFault::kFrameBytes);
  EXPECT_EQ(decode_welcome(with(welcome, 4, 0)).error(), FrameFault::kWrongMagic);
  EXPECT_EQ(decode_welcome(with(welcome, 9, 1)).error(), FrameFault::kUnexpectedKind);
  EXPECT_EQ(decode_welcome(with(welcome, 10, 1)).error(), FrameFault::kUnknownStatus);
  EXPECT_EQ(decode_welcome(with(welcome, 16, 3)).error(), FrameFault::kReserved);
}

TEST(Frame, RandomBytesNeverDecodeToSomethingOutOfRange) {
  constexpr uint64_t kSeed = 20'24;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 20'000; ++i) {
    // A valid frame with some bytes changed passes more checks than noise.
    auto bytes = encode(page_read());
    for (uint64_t change = 1 + random() % 4; change > 0; --change)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const Decoded<Request> request = decode_request(bytes);
    if (!request) continue;
    EXPECT_GE(request->data_bytes, 1U);
    EXPECT_LE(request->data_bytes, kMaxOperationBytes);
    EXPECT_LE(request->packed_bytes, request->data_bytes / 4096 * 4098);
  }
}

}  // namespace
}  // namespace farpage::rdma::tcp
