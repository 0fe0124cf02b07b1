// The node's end of a connection, byte by byte, without a socket.
#include "rdma/tcp/connection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>

#include "rdma/limits.h"
#include "rdma/tcp/packed_pages.h"

namespace farpage::rdma::tcp {
namespace {

class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() : slab_(64 * 1024), connection_(Fd(), keys_, fences_, counters_) {
    for (size_t i = 0; i < slab_.size(); ++i) slab_[i] = static_cast<std::byte>(i * 31);
    key_ = keys_.insert({slab_, -1}, Generation{1}).value();
  }

  // Passes the bytes to the connection in pieces of at most `piece`; false when it wants to close.
  bool give(std::span<const std::byte> bytes, size_t piece = SIZE_MAX) {
    while (!bytes.empty()) {
      const std::span<std::byte> space = connection_.receive_space();
      const size_t count = std::min({bytes.size(), piece, space.size()});
      if (count == 0) return true;
      std::memcpy(space.data(), bytes.data(), count);
      connection_.received(count);
      bytes = bytes.subspan(count);
      if (!connection_.serve()) return false;
    }
    return true;
  }

  // Takes all replies, in pieces of at most `piece` bytes.
  std::vector<std::byte> take_replies(size_t piece = SIZE_MAX) {
    std::vector<std::byte> taken;
    while (connection_.has_replies()) {
      const msghdr* message = connection_.replies();
      const iovec& segment = message->msg_iov[0];
      const size_t count = std::min(piece, segment.iov_len);
      const auto* data = static_cast<const std::byte*>(segment.iov_base);
      taken.insert(taken.end(), data, data + count);
      connection_.sent(count);
    }
    return taken;
  }

  void greet(const Hello& hello = {}) {
    ASSERT_TRUE(give(encode(hello)));
    ASSERT_EQ(take_replies().size(), kWelcomeBytes);
  }
  void connect_anew() {
    std::destroy_at(&connection_);
    std::construct_at(&connection_, Fd(), keys_, fences_, counters_);
  }
  void greet_packing() { greet(Hello{.packs_writes = true}); }

  // Header and data of a packed WRITE of whole pages to page 1 of the slab.
  std::vector<std::byte> packed_write(std::span<const std::byte> data, uint64_t token = 9) const {
    std::vector<std::byte> packed;
    PageCodec codec;
    std::array<std::byte, kMaxPackedPageBytes> one{};
    for (size_t at = 0; at < data.size(); at += kPageBytes) {
      const size_t bytes = pack_page(codec, data.subspan(at, kPageBytes), one).value();
      packed.insert(packed.end(), one.begin(), one.begin() + static_cast<ptrdiff_t>(bytes));
    }
    return with_header(data.size(), packed, token);
  }
  std::vector<std::byte> with_header(size_t data_bytes, std::span<const std::byte> packed,
                                     uint64_t token = 9) const {
    Request write =
        request(OperationKind::kWrite, kPageBytes, static_cast<uint32_t>(data_bytes), token);
    write.packed_bytes = static_cast<uint32_t>(packed.size());
    const auto header = encode(write);
    std::vector<std::byte> frame(header.begin(), header.end());
    frame.insert(frame.end(), packed.begin(), packed.end());
    return frame;
  }

  Request request(OperationKind kind, uint64_t offset, uint32_t bytes, uint64_t token) const {
    return {kind, token, {reinterpret_cast<uintptr_t>(slab_.data()) + offset}, key_, {1}, bytes};
  }

  std::vector<std::byte> slab_;
  KeyTable keys_;
  SessionFences fences_;
  DataCounters counters_;
  Connection connection_;
  RemoteKey key_;
};

Reply reply_at(std::span<const std::byte> bytes, size_t at) {
  return decode_reply(std::span<const std::byte, kReplyBytes>(bytes.data() + at, kReplyBytes))
      .value();
}

TEST_F(ConnectionTest, ServesTheSameWhateverThePiecesOfTheStream) {
  greet();
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{41}, SIZE_MAX}) {
    std::vector<std::byte> stream;
    const auto append = [&](std::span<const std::byte> bytes) {
      stream.insert(stream.end(), bytes.begin(), bytes.end());
    };
    const std::vector<std::byte> data(300, static_cast<std::byte>(piece));
    append(encode(request(OperationKind::kRead, 100, 200, 1)));
    append(encode(request(OperationKind::kWrite, 1000, 300, 2)));
    append(data);
    append(encode(request(OperationKind::kRead, 1000, 300, 3)));
    ASSERT_TRUE(give(stream, piece));
    const std::vector<std::byte> replies = take_replies(piece);
    ASSERT_EQ(replies.size(), 3 * kReplyBytes + 200 + 300);
    EXPECT_EQ(reply_at(replies, 0).token, 1U);
    EXPECT_EQ(std::memcmp(replies.data() + kReplyBytes, slab_.data() + 100, 200), 0);
    EXPECT_EQ(reply_at(replies, kReplyBytes + 200).token, 2U);
    EXPECT_EQ(reply_at(replies, 2 * kReplyBytes + 200).token, 3U);
    EXPECT_EQ(std::memcmp(replies.data() + 3 * kReplyBytes + 200, data.data(), 300), 0);
  }
}

TEST_F(ConnectionTest, FullBatchStopsServingUntilItIsSent) {
  greet();
  constexpr size_t kRequests = Connection::kMaxReplies + 10;
  std::vector<std::byte> stream;
  for (size_t i = 0; i < kRequests; ++i) {
    const auto bytes = encode(request(OperationKind::kRead, i, 1, i));
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  }
  ASSERT_TRUE(give(stream));
  EXPECT_EQ(take_replies().size(), Connection::kMaxReplies * (kReplyBytes + 1));
  ASSERT_TRUE(connection_.serve());
  EXPECT_EQ(take_replies().size(), 10 * (kReplyBytes + 1));
}

TEST_F(ConnectionTest, UnreadRepliesBoundWhatIsReceived) {
  greet();
  const auto bytes = encode(request(OperationKind::kRead, 0, 1, 1));
  size_t given = 0;
  while (!connection_.receive_space().empty()) {
    const size_t count = std::min(bytes.size(), connection_.receive_space().size());
    ASSERT_TRUE(give(std::span(bytes).first(count)));
    given += count;
    ASSERT_LT(given, 10 * Connection::kReceiveBytes);
  }
  EXPECT_LE(given, Connection::kReceiveBytes + Connection::kMaxReplies * kRequestBytes);
}

TEST_F(ConnectionTest, WriteWhoseKeyIsWithdrawnHalfwayIsRefusedAndStopsWriting) {
  greet();
  const std::vector<std::byte> data(1000, std::byte{0xCC});
  ASSERT_TRUE(give(encode(request(OperationKind::kWrite, 0, 1000, 9))));
  ASSERT_TRUE(give(std::span(data).first(400)));
  { const KeyTable::Withdrawal withdrawal = keys_.withdraw(key_); }
  std::fill(slab_.begin(), slab_.end(), std::byte{0});  // only the owner uses it now
  ASSERT_TRUE(give(std::span(data).subspan(400)));
  const std::vector<std::byte> replies = take_replies();
  ASSERT_EQ(replies.size(), kReplyBytes);
  EXPECT_EQ(reply_at(replies, 0).status, WireStatus::kRemoteAccess);
  EXPECT_EQ(std::count(slab_.begin(), slab_.end(), std::byte{0xCC}), 0);
  EXPECT_EQ(counters_.refused.load(), 1U);
}

// Zeros, text, and noise.
std::vector<std::byte> pages_of_all_kinds(size_t pages) {
  std::vector<std::byte> data(pages * kPageBytes);
  uint32_t noise = 1;
  for (size_t i = 0; i < data.size(); ++i) {
    noise = noise * 1664525 + 1013904223;
    const size_t kind = i / kPageBytes % 3;
    data[i] = static_cast<std::byte>(kind == 0 ? 0 : kind == 1 ? i / 70 : noise >> 24);
  }
  return data;
}

TEST_F(ConnectionTest, PackedWriteIsTheSameWhateverThePiecesOfTheStream) {
  greet_packing();
  const std::vector<std::byte> data = pages_of_all_kinds(9);
  std::vector<std::byte> stream = packed_write(data, 1);
  const size_t packed_bytes = stream.size() - kRequestBytes;
  const auto read = encode(request(OperationKind::kRead, 10 * kPageBytes, 100, 2));
  stream.insert(stream.end(), read.begin(), read.end());
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{1000}, SIZE_MAX}) {
    std::ranges::fill(slab_, std::byte{0x77});
    ASSERT_TRUE(give(stream, piece));
    const std::vector<std::byte> replies = take_replies();
    ASSERT_EQ(replies.size(), 2 * kReplyBytes + 100);
    EXPECT_EQ(reply_at(replies, 0).status, WireStatus::kOk);
    EXPECT_EQ(reply_at(replies, 0).token, 1U);
    EXPECT_EQ(std::memcmp(slab_.data() + kPageBytes, data.data(), data.size()), 0);
    EXPECT_EQ(
        std::ranges::count(slab_, std::byte{0x77}) - std::ranges::count(data, std::byte{0x77}),
        static_cast<ptrdiff_t>(slab_.size() - data.size()));
  }
  EXPECT_EQ(counters_.writes.load(), 4U);
  EXPECT_EQ(counters_.bytes_written.load(), 4 * data.size());
  EXPECT_EQ(counters_.bytes_saved.load(), 4 * (data.size() - packed_bytes));
}

TEST_F(ConnectionTest, PackedWriteWhoseKeyIsWithdrawnHalfwayIsRefusedAndStopsWriting) {
  greet_packing();
  const std::vector<std::byte> frame =
      packed_write(std::vector<std::byte>(10 * kPageBytes, std::byte{0xCC}));
  ASSERT_TRUE(give(std::span(frame).first(kRequestBytes + (frame.size() - kRequestBytes) / 2)));
  EXPECT_GT(std::ranges::count(slab_, std::byte{0xCC}), static_cast<ptrdiff_t>(4 * kPageBytes));
  { const KeyTable::Withdrawal withdrawal = keys_.withdraw(key_); }
  std::ranges::fill(slab_, std::byte{0});  // only the owner uses it now
  ASSERT_TRUE(give(std::span(frame).subspan(kRequestBytes + (frame.size() - kRequestBytes) / 2)));
  const std::vector<std::byte> replies = take_replies();
  ASSERT_EQ(replies.size(), kReplyBytes);
  EXPECT_EQ(reply_at(replies, 0).status, WireStatus::kRemoteAccess);
  EXPECT_EQ(std::ranges::count(slab_, std::byte{0xCC}), 0);
  ASSERT_TRUE(give(encode(request(OperationKind::kRead, 0, 10, 2))));
  EXPECT_EQ(take_replies().size(), kReplyBytes) << "the stream goes on";
}

TEST_F(ConnectionTest, PackedWriteOutsideItsLeaseIsSkipped) {
  greet_packing();
  const std::vector<std::byte> before = slab_;
  const std::vector<std::byte> data(slab_.size(), std::byte{0xCC});  // begins at page 1
  ASSERT_TRUE(give(packed_write(data)));
  EXPECT_EQ(reply_at(take_replies(), 0).status, WireStatus::kRemoteAccess);
  EXPECT_EQ(slab_, before);
  EXPECT_EQ(counters_.bytes_saved.load(), 0U);
}

TEST_F(ConnectionTest, PackedWriteThatWasNotAskedForIsMalformed) {
  greet();
  EXPECT_FALSE(give(packed_write(std::vector<std::byte>(kPageBytes))));
  EXPECT_EQ(counters_.malformed.load(), 1U);
}

TEST_F(ConnectionTest, PackedPagesThatAreNotWhatTheHeaderSaysAreMalformed) {
  const std::vector<std::byte> text = pages_of_all_kinds(2);  // zeros, text
  const std::vector<std::byte> good = packed_write(text);
  const std::span<const std::byte> pages = std::span(good).subspan(kRequestBytes);
  const size_t first = kPackedLengthBytes + packed_length(pages);
  struct Case {
    const char* what;
    std::function<std::vector<std::byte>()> frame;
  };
  const auto changed = [&](size_t at, int value) {
    std::vector<std::byte> packed(pages.begin(), pages.end());
    packed[at] = static_cast<std::byte>(value);
    return with_header(text.size(), packed);
  };
  const Case cases[] = {
      {"a length of 0", [&] { return changed(0, 0); }},
      {"a length above a page", [&] { return changed(1, 0x10); }},
      {"a length beyond the frame", [&] { return changed(first + 1, 0x0F); }},
      {"no lz4 block", [&] { return changed(2, 0xFF); }},
      {"one page fewer", [&] { return with_header(text.size(), pages.first(first)); }},
      {"one page more", [&] { return with_header(kPageBytes, pages); }},
      {"a byte more",
       [&] {
         std::vector<std::byte> packed(pages.begin(), pages.end());
         packed.push_back(std::byte{0});
         return with_header(text.size(), packed);
       }},
      {"a byte fewer", [&] { return with_header(text.size(), pages.first(pages.size() - 1)); }},
      {"an lz4 block of less than a page",
       [&] {
         const std::vector<std::byte> packed = {std::byte{2}, std::byte{0}, std::byte{0x10},
                                                std::byte{7}};
         return with_header(kPageBytes, packed);
       }},
      {"an lz4 block of more than a page", [&] {
         // One literal, then a match of 19 + 255 * 17 bytes.
         std::vector<std::byte> packed = {std::byte{0}, std::byte{0}, std::byte{0x1F},
                                          std::byte{7}, std::byte{1}, std::byte{0}};
         packed.insert(packed.end(), 17, std::byte{0xFF});
         packed.insert(packed.end(), {std::byte{0}, std::byte{0}});
         packed[0] = static_cast<std::byte>(packed.size() - kPackedLengthBytes);
         return with_header(kPageBytes, packed);
       }}};
  uint64_t malformed = 0;
  for (const Case& c : cases) {
    for (const size_t piece : {size_t{1}, SIZE_MAX}) {
      connect_anew();
      greet_packing();
      const std::vector<std::byte> before = slab_;
      EXPECT_FALSE(give(c.frame(), piece)) << c.what;
      EXPECT_FALSE(connection_.close_reason().empty()) << c.what;
      EXPECT_EQ(counters_.malformed.load(), ++malformed) << c.what;
      EXPECT_TRUE(std::equal(slab_.begin(), slab_.begin() + kPageBytes, before.begin())) << c.what;
      EXPECT_TRUE(
          std::equal(slab_.begin() + 3 * kPageBytes, slab_.end(), before.begin() + 3 * kPageBytes))
          << c.what;
    }
  }
}

TEST_F(ConnectionTest, RefusedWriteIsSkippedAndTheStreamGoesOn) {
  greet();
  Request wrong = request(OperationKind::kWrite, 0, 5000, 1);
  wrong.generation = {2};
  const std::vector<std::byte> before = slab_;
  ASSERT_TRUE(give(encode(wrong)));
  ASSERT_TRUE(give(std::vector<std::byte>(5000, std::byte{0x46})));
  ASSERT_TRUE(give(encode(request(OperationKind::kRead, 0, 10, 2))));
  const std::vector<std::byte> replies = take_replies();
  ASSERT_EQ(replies.size(), 2 * kReplyBytes + 10);
  EXPECT_EQ(reply_at(replies, 0).status, WireStatus::kRemoteAccess);
  EXPECT_EQ(reply_at(replies, kReplyBytes).status, WireStatus::kOk);
  EXPECT_EQ(slab_, before);
}

TEST_F(ConnectionTest, MemoryIsHeldUntilTheLastByteOfItsReplyIsSent) {
  greet();
  ASSERT_TRUE(give(encode(request(OperationKind::kRead, 0, 100, 1))));
  KeyTable::Withdrawal withdrawal = keys_.withdraw(key_);
  EXPECT_TRUE(connection_.holds_withdrawn_memory());
  EXPECT_FALSE(connection_.sent(kReplyBytes + 99));
  EXPECT_FALSE(withdrawal.drained_within(Milliseconds(0)));
  EXPECT_TRUE(connection_.sent(1));
  EXPECT_TRUE(withdrawal.drained_within(Milliseconds(0)));
  EXPECT_FALSE(connection_.holds_withdrawn_memory());
}

TEST_F(ConnectionTest, RestOfAWriteOfAFencedConnectionIsNotApplied) {
  constexpr uint64_t kSession = 77;
  ASSERT_TRUE(give(encode(Hello{kProtocolVersion, 1, kSession})));
  ASSERT_EQ(take_replies().size(), kWelcomeBytes);
  const std::vector<std::byte> data(1000, std::byte{0xCC});
  ASSERT_TRUE(give(encode(request(OperationKind::kWrite, 0, 1000, 9))));
  ASSERT_TRUE(give(std::span(data).first(400)));
  // A newer connection of the session, and its WRITE.
  const SessionFences::Pass newer = fences_.enter(kSession);
  std::fill(slab_.begin(), slab_.end(), std::byte{0});
  EXPECT_FALSE(give(std::span(data).subspan(400)));
  EXPECT_FALSE(connection_.close_reason().empty());
  EXPECT_FALSE(connection_.has_replies());
  EXPECT_EQ(std::count(slab_.begin(), slab_.end(), std::byte{0xCC}), 0);
  EXPECT_EQ(counters_.malformed.load(), 0U);
}

TEST_F(ConnectionTest, RequestsBehindTheHelloAreServedUnderItsSession) {
  constexpr uint64_t kSession = 77;
  const SessionFences::Pass former = fences_.enter(kSession);
  const auto hello = encode(Hello{kProtocolVersion, 1, kSession});
  const auto read = encode(request(OperationKind::kRead, 0, 10, 1));
  std::vector<std::byte> stream(hello.begin(), hello.end());
  stream.insert(stream.end(), read.begin(), read.end());
  ASSERT_TRUE(give(stream));
  EXPECT_FALSE(former.is_open());
  EXPECT_EQ(take_replies().size(), kWelcomeBytes + kReplyBytes + 10);
}

TEST_F(ConnectionTest, HelloOfAnotherVersionFencesNobody) {
  const SessionFences::Pass former = fences_.enter(77);
  ASSERT_TRUE(give(encode(Hello{kProtocolVersion + 1, 1, 77})));
  EXPECT_TRUE(former.is_open());
}

TEST_F(ConnectionTest, AnythingButAHelloFirstIsMalformed) {
  EXPECT_FALSE(give(encode(request(OperationKind::kRead, 0, 10, 1))));
  EXPECT_EQ(counters_.malformed.load(), 1U);
  EXPECT_FALSE(connection_.close_reason().empty());
}

TEST_F(ConnectionTest, SecondHelloIsMalformed) {
  greet();
  ASSERT_TRUE(give(encode(Hello{})));  // shorter than a request: not checked yet
  EXPECT_FALSE(give(encode(Hello{})));
  EXPECT_EQ(counters_.malformed.load(), 1U);
}

TEST_F(ConnectionTest, OtherVersionIsToldOursAndClosed) {
  ASSERT_TRUE(give(encode(Hello{kProtocolVersion + 1, 1})));
  EXPECT_TRUE(connection_.close_after_replies());
  const std::vector<std::byte> replies = take_replies();
  ASSERT_EQ(replies.size(), kWelcomeBytes);
  const Decoded<Welcome> welcome =
      decode_welcome(std::span<const std::byte, kWelcomeBytes>(replies.data(), kWelcomeBytes));
  ASSERT_TRUE(welcome.has_value());
  EXPECT_EQ(welcome->status, WireStatus::kVersion);
  EXPECT_EQ(welcome->version, kProtocolVersion);
}

TEST_F(ConnectionTest, PeerThatGuessesKeysIsClosedAfterAFew) {
  greet();
  for (uint32_t i = 1; i < kMaxUnknownKeys; ++i) {
    Request guess = request(i % 2 == 0 ? OperationKind::kRead : OperationKind::kWrite, 0, 8, i);
    guess.key.secret[i % 2] ^= uint64_t{1} << i;
    const std::vector<std::byte> data(8);
    ASSERT_TRUE(give(encode(guess)));
    if (guess.kind == OperationKind::kWrite) {
      ASSERT_TRUE(give(data));
    }
    EXPECT_EQ(reply_at(take_replies(), 0).status, WireStatus::kRemoteAccess);
    EXPECT_FALSE(connection_.guesses());
  }
  Request guess = request(OperationKind::kRead, 0, 8, 77);
  guess.key.value ^= 1;
  ASSERT_TRUE(give(encode(guess)));
  EXPECT_TRUE(connection_.guesses());
  EXPECT_TRUE(connection_.close_after_replies());
  EXPECT_EQ(reply_at(take_replies(), 0).status, WireStatus::kRemoteAccess);
  EXPECT_NE(connection_.close_reason().find("keys"), std::string::npos);
  ASSERT_TRUE(give(encode(request(OperationKind::kRead, 0, 8, 78))));
  EXPECT_FALSE(connection_.has_replies()) << "nothing is served any more";
}

// After a restart of the node, a borrower has many operations with old keys in flight.
TEST_F(ConnectionTest, RefusalsOfManyWrongKeysAtOnceAreSentBeforeTheConnectionEnds) {
  for (const size_t good_before : {size_t{0}, Connection::kMaxReplies - kMaxUnknownKeys}) {
    for (const OperationKind kind : {OperationKind::kRead, OperationKind::kWrite}) {
      Connection connection(Fd(), keys_, fences_, counters_);
      std::vector<std::byte> stream;
      const auto append = [&](std::span<const std::byte> bytes) {
        stream.insert(stream.end(), bytes.begin(), bytes.end());
      };
      append(encode(Hello{}));
      for (size_t i = 0; i < good_before; ++i)
        append(encode(request(OperationKind::kRead, 0, 8, i)));
      for (uint32_t i = 1; i <= 3 * kMaxUnknownKeys; ++i) {
        Request wrong = request(kind, 0, 8, i);
        wrong.key.secret[1] ^= i;
        append(encode(wrong));
        if (kind == OperationKind::kWrite) append(std::vector<std::byte>(8));
      }
      std::memcpy(connection.receive_space().data(), stream.data(), stream.size());
      connection.received(stream.size());
      uint32_t refused = 0;
      while (connection.serve() && connection.has_replies()) {
        const msghdr* message = connection.replies();
        size_t bytes = 0;
        for (size_t i = 0; i < message->msg_iovlen; ++i) {
          const iovec& segment = message->msg_iov[i];
          bytes += segment.iov_len;
          if (segment.iov_len != kReplyBytes) continue;
          const std::span header(static_cast<const std::byte*>(segment.iov_base), kReplyBytes);
          refused += reply_at(header, 0).status == WireStatus::kRemoteAccess;
        }
        connection.sent(bytes);
      }
      EXPECT_EQ(refused, kMaxUnknownKeys);
      EXPECT_TRUE(connection.close_after_replies());
    }
  }
}

TEST_F(ConnectionTest, WrongKeyThatIsShownAgainIsNotAnotherGuess) {
  greet();
  for (uint32_t i = 0; i < 10 * kMaxUnknownKeys; ++i) {
    Request wrong = request(OperationKind::kRead, 0, 8, i);
    wrong.key.secret[0] ^= 1 + i % (kMaxUnknownKeys - 1);
    ASSERT_TRUE(give(encode(wrong)));
    EXPECT_EQ(reply_at(take_replies(), 0).status, WireStatus::kRemoteAccess) << i;
  }
  EXPECT_FALSE(connection_.guesses());
}

TEST_F(ConnectionTest, WithdrawnKeyAndWrongBoundsAreRefusedAndNoGuesses) {
  greet();
  (void)keys_.withdraw(key_);
  const RemoteKey other = keys_.insert({slab_, -1}, Generation{2}).value();
  for (uint32_t i = 0; i < 10 * kMaxUnknownKeys; ++i) {
    ASSERT_TRUE(give(encode(request(OperationKind::kRead, 0, 8, i))));
    EXPECT_EQ(reply_at(take_replies(), 0).status, WireStatus::kRemoteAccess);
    Request outside = request(OperationKind::kRead, slab_.size(), 8, i);
    outside.key = other;
    outside.generation = Generation{2};
    ASSERT_TRUE(give(encode(outside)));
    EXPECT_EQ(reply_at(take_replies(), 0).status, WireStatus::kRemoteAccess);
  }
  Request good = request(OperationKind::kRead, 0, 8, 5);
  good.key = other;
  good.generation = Generation{2};
  ASSERT_TRUE(give(encode(good)));
  EXPECT_EQ(reply_at(take_replies(), 0).status, WireStatus::kOk);
  EXPECT_FALSE(connection_.guesses());
}

}  // namespace
}  // namespace farpage::rdma::tcp
