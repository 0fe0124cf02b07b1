// The node's data server against borrowers that misbehave.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include "base/host_port.h"
#include "rdma/limits.h"
#include "rdma/tcp/frame.h"
#include "rdma/tcp/socket.h"
#include "rdma/tcp/tcp.h"
#include "tests/unit/rdma/test_slab.h"

namespace farpage::rdma::tcp {
namespace {

class TcpHostTest : public ::testing::Test {
 protected:
  void start(const TcpHostOptions& options = {}) {
    host_ = make_tcp_memory_host(options).value();
    slab_.lend_on(*host_);
  }
  std::unique_ptr<Channel> connect() {
    return make_tcp_transport()->connect(host_->address(), borrower_.options, {}).value();
  }
  uint16_t port() const { return host_port_from(host_->address().text)->port; }
  // A bare connection after its handshake.
  Fd raw(uint64_t session = 0) {
    const Instant deadline = SteadyClock::read() + Seconds(10);
    Fd socket = connect_to("127.0.0.1", port(), deadline).value();
    EXPECT_TRUE(send_all(socket.get(), encode(Hello{kProtocolVersion, 1, session}), deadline));
    std::array<std::byte, kWelcomeBytes> welcome{};
    EXPECT_TRUE(receive_all(socket.get(), welcome, deadline).has_value());
    return socket;
  }
  // Requests far more than any socket buffers, and reads none of it. All in one segment, so that
  // the host serves it as one batch.
  void ask_and_never_read(int socket) {
    const auto address = reinterpret_cast<uintptr_t>(slab_.memory.data());
    std::vector<std::byte> all;
    for (uint64_t i = 0; i < 64; ++i) {
      const auto request = encode(Request{
          OperationKind::kRead, i, {address}, slab_.key, slab_.generation, kMaxOperationBytes});
      all.insert(all.end(), request.begin(), request.end());
    }
    ASSERT_TRUE(send_all(socket, all, SteadyClock::read() + Seconds(10)));
  }
  // Sends one WRITE of the page; whether the socket took all of it.
  bool write_page(int socket, size_t page, std::byte fill) {
    const Operation target = slab_.write(page, {});
    const Request request{OperationKind::kWrite, 1,         target.remote, target.key,
                          target.generation,     kPageBytes};
    const auto header = encode(request);
    std::vector<std::byte> frame(header.size() + kPageBytes, fill);
    std::copy(header.begin(), header.end(), frame.begin());
    const ssize_t sent = ::send(socket, frame.data(), frame.size(), MSG_NOSIGNAL);
    return sent == static_cast<ssize_t>(frame.size());
  }
  // Waits until the host has dropped the other connections, so that it applies none of their frames
  // later.
  void wait_for_peers(uint64_t peers) const {
    while (host_->counters().peers > peers) std::this_thread::yield();
  }
  void expect_page(Channel& channel, size_t page, std::byte fill) {
    const std::span<std::byte> seen = borrower_.page(1);
    ASSERT_EQ(run(channel, slab_.read(page, seen)), CompletionStatus::kOk);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), fill), static_cast<ptrdiff_t>(kPageBytes));
  }
  // Whether the host hung up; waits for it.
  static bool is_hung_up(int socket) {
    std::vector<std::byte> ignored(1 << 16);
    for (;;) {
      const Status got = receive_all(socket, ignored, SteadyClock::read() + Seconds(20));
      if (!got) return got.error().code != ErrorCode::kTimedOut;
    }
  }

  // READs, each with another wrong key, until the host hangs up; returns how many it refused.
  uint32_t guess_until_hung_up(int socket, uint64_t& tries) {
    for (uint32_t refused = 0;; ++refused) {
      Operation guess = slab_.read(0, borrower_.page(0));
      guess.key.secret[0] ^= ++tries;
      const auto frame = encode(Request{OperationKind::kRead, tries, guess.remote, guess.key,
                                        guess.generation, kPageBytes});
      const Instant deadline = SteadyClock::read() + Seconds(10);
      std::array<std::byte, kReplyBytes> reply{};
      if (!send_all(socket, frame, deadline) || !receive_all(socket, reply, deadline))
        return refused;
      EXPECT_EQ(decode_reply(reply)->status, WireStatus::kRemoteAccess);
    }
  }

  TestSlab slab_{kMaxOperationBytes / kPageBytes};
  TestBorrower borrower_;
  std::unique_ptr<MemoryHost> host_;
};

TEST_F(TcpHostTest, BorrowerThatNeverReadsBlocksNobodyElse) {
  start();
  const Fd stuck = raw();
  ask_and_never_read(stuck.get());
  const auto channel = connect();
  for (int i = 0; i < 200; ++i)
    ASSERT_EQ(run(*channel, slab_.read(3, borrower_.page(0))), CompletionStatus::kOk);
  EXPECT_EQ(borrower_.page(0)[0], std::byte{4});
}

TEST_F(TcpHostTest, WithdrawalDisconnectsTheBorrowerThatHoldsItUp) {
  TcpHostOptions options;
  options.withdraw_grace = Milliseconds(5);
  options.stall_timeout = std::chrono::hours(24);
  start(options);
  TestSlab other(1);
  other.lend_on(*host_);
  const auto channel = connect();
  const Fd stuck = raw();
  ask_and_never_read(stuck.get());
  while (host_->counters().reads < 64) std::this_thread::yield();
  host_->withdraw(slab_.key);  // would hang for ever
  EXPECT_TRUE(is_hung_up(stuck.get()));
  EXPECT_EQ(run(*channel, slab_.read(0, borrower_.page(0))), CompletionStatus::kRemoteAccess);
  EXPECT_EQ(run(*channel, other.read(0, borrower_.page(0))), CompletionStatus::kOk);
}

TEST_F(TcpHostTest, EndOfTheHostDoesNotWaitForABorrowerThatNeverReads) {
  start();
  const Fd stuck = raw();
  ask_and_never_read(stuck.get());
  host_.reset();
  EXPECT_TRUE(is_hung_up(stuck.get()));
}

TEST_F(TcpHostTest, RestOfAWriteIsNotAppliedAfterItsSessionConnectsAnew) {
  constexpr uint64_t kSession = 0x1234;
  start();
  borrower_.options.session = kSession;
  const Fd former = raw(kSession);
  const Operation target = slab_.write(3, {});
  const Request request{OperationKind::kWrite, 1,         target.remote, target.key,
                        target.generation,     kPageBytes};
  const std::vector<std::byte> half(kPageBytes / 2, std::byte{0xAA});
  const Instant deadline = SteadyClock::read() + Seconds(10);
  ASSERT_TRUE(send_all(former.get(), encode(request), deadline));
  ASSERT_TRUE(send_all(former.get(), half, deadline));

  const auto channel = connect();
  std::fill_n(borrower_.page(0).begin(), kPageBytes, std::byte{0xBB});
  ASSERT_EQ(run(*channel, slab_.write(3, borrower_.page(0))), CompletionStatus::kOk);
  (void)send_all(former.get(), half, deadline);
  EXPECT_TRUE(is_hung_up(former.get()));
  wait_for_peers(1);
  expect_page(*channel, 3, std::byte{0xBB});
}

TEST_F(TcpHostTest, WhatAFormerConnectionPutIntoTheServersSocketIsNotApplied) {
  TcpHostOptions options;
  options.server_threads = 4;  // the two connections are mostly served by different threads
  start(options);
  for (uint64_t session = 1; session <= 20; ++session) {
    borrower_.options.session = session;
    const Fd former = raw(session);
    for (int i = 0; i < 4096 && write_page(former.get(), 3, std::byte{0xAA}); ++i) {
    }
    const auto channel = connect();
    std::fill_n(borrower_.page(0).begin(), kPageBytes, std::byte{0xBB});
    ASSERT_EQ(run(*channel, slab_.write(3, borrower_.page(0))), CompletionStatus::kOk);
    wait_for_peers(1);
    expect_page(*channel, 3, std::byte{0xBB});
  }
}

TEST_F(TcpHostTest, WriteThatWaitsBehindUnreadRepliesIsNotAppliedAfterANewConnection) {
  start();
  borrower_.options.session = 5;
  const Fd former = raw(5);
  ask_and_never_read(former.get());
  write_page(former.get(), 3, std::byte{0xAA});
  const auto channel = connect();
  std::fill_n(borrower_.page(0).begin(), kPageBytes, std::byte{0xBB});
  ASSERT_EQ(run(*channel, slab_.write(3, borrower_.page(0))), CompletionStatus::kOk);
  EXPECT_TRUE(is_hung_up(former.get()));  // receives the remaining replies first
  wait_for_peers(1);
  expect_page(*channel, 3, std::byte{0xBB});
}

TEST_F(TcpHostTest, ConnectionWithoutHelloIsClosed) {
  TcpHostOptions options;
  options.hello_timeout = Milliseconds(1);
  start(options);
  const Fd socket = connect_to("127.0.0.1", port(), SteadyClock::read() + Seconds(10)).value();
  EXPECT_TRUE(is_hung_up(socket.get()));
}

TEST_F(TcpHostTest, BorrowerThatTakesNoRepliesIsClosedInTheEnd) {
  TcpHostOptions options;
  options.stall_timeout = Milliseconds(1);
  start(options);
  const Fd stuck = raw();
  ask_and_never_read(stuck.get());
  while (host_->counters().peers > 0) std::this_thread::yield();
}

TEST_F(TcpHostTest, ConnectionsBeyondTheLimitAreRefusedUntilOneLeaves) {
  TcpHostOptions options;
  options.max_connections = 2;
  start(options);
  auto first = connect();
  const auto second = connect();
  EXPECT_FALSE(make_tcp_transport()->connect(host_->address(), borrower_.options, {}).has_value());
  EXPECT_EQ(run(*second, slab_.read(0, borrower_.page(0))), CompletionStatus::kOk);
  first.reset();
  while (host_->counters().peers > 1) std::this_thread::yield();
  EXPECT_EQ(run(*connect(), slab_.read(0, borrower_.page(0))), CompletionStatus::kOk);
}

TEST_F(TcpHostTest, OptionsThatCannotWorkAreRefusedByName) {
  const auto context_of = [](const TcpHostOptions& options) {
    const auto host = make_tcp_memory_host(options);
    return host ? std::string("accepted") : host.error().context;
  };
  TcpHostOptions options;
  options.server_threads = 0;
  EXPECT_NE(context_of(options).find("server_threads"), std::string::npos);
  options = {};
  options.max_connections = 0;
  EXPECT_NE(context_of(options).find("max_connections"), std::string::npos);
  options = {};
  options.listen_host = "0.0.0.0";
  EXPECT_NE(context_of(options).find("advertise_host"), std::string::npos);
  options.advertise_host = "node7.example";
  const auto host = make_tcp_memory_host(options);
  ASSERT_TRUE(host.has_value()) << host.error().message();
  EXPECT_EQ(host_port_from((*host)->address().text)->host, "node7.example");
  options = {};
  options.port = host_port_from((*host)->address().text)->port;
  EXPECT_NE(context_of(options), "accepted") << "the port is taken";
}

TEST_F(TcpHostTest, BorrowerThatGuessesKeysIsSlowedDownAndDisturbsNobody) {
  start();
  const auto channel = connect();  // stays usable
  Instant first_guess{0};
  uint64_t tries = 0;
  for (uint64_t connection = 1; connection <= 4; ++connection) {
    const Fd guesser = raw();
    if (connection > 1) {
      // The penalty began after the previous connection's first guess.
      EXPECT_GE(SteadyClock::read() - first_guess, kGuessPenalty) << "of connection " << connection;
    }
    first_guess = SteadyClock::read();
    EXPECT_EQ(guess_until_hung_up(guesser.get(), tries), kMaxUnknownKeys);
    ASSERT_EQ(run(*channel, slab_.read(3, borrower_.page(0))), CompletionStatus::kOk);
  }
  expect_page(*channel, 3, std::byte{4});
  expect_page(*connect(), 3, std::byte{4});
}

TEST_F(TcpHostTest, ThousandsOfWrongKeysOnManyConnectionsOpenNothing) {
  start();
  const auto channel = connect();
  std::vector<Fd> guessers;
  for (int i = 0; i < 200; ++i) guessers.push_back(raw());
  uint64_t tries = 0;
  for (const Fd& guesser : guessers)
    EXPECT_EQ(guess_until_hung_up(guesser.get(), tries), kMaxUnknownKeys);
  EXPECT_EQ(host_->counters().refused, guessers.size() * kMaxUnknownKeys);
  EXPECT_EQ(host_->counters().reads, 0U);
  expect_page(*channel, 3, std::byte{4});
}

// A node that restarted on its port: a borrower still has keys from before the restart, and perhaps
// some newer ones.
TEST_F(TcpHostTest, BorrowerWithKeysOfAFormerLifeLearnsThatAllAreLost) {
  start();
  constexpr uint32_t kOldKeys = 3 * kMaxUnknownKeys;
  std::vector<uint32_t> open(kOldKeys);
  std::iota(open.begin(), open.end(), 1U);
  for (uint32_t connection = 1; !open.empty(); ++connection) {
    ASSERT_LE(connection, kOldKeys / kMaxUnknownKeys) << open.size() << " keys without an answer";
    const auto channel = connect();
    expect_page(*channel, 3, std::byte{4});
    std::vector<Operation> reads;
    for (const uint32_t key : open) {
      reads.push_back(slab_.read(0, borrower_.page(key), key));
      reads.back().key.secret[0] ^= key;
    }
    ASSERT_EQ(channel->post(reads), reads.size());
    for (size_t i = 0; i < reads.size(); ++i) {
      const Completion done = wait_one(*channel);
      ASSERT_NE(done.status, CompletionStatus::kOk);
      if (done.status == CompletionStatus::kRemoteAccess)
        std::erase(open, static_cast<uint32_t>(done.token));
    }
  }
  expect_page(*connect(), 3, std::byte{4});
}

TEST_F(TcpHostTest, EndOfTheHostEndsABorrowerThatIsHeld) {
  start();
  uint64_t tries = 0;
  const Fd guesser = raw();
  (void)guess_until_hung_up(guesser.get(), tries);
  wait_for_peers(0);
  const Fd held = connect_to("127.0.0.1", port(), SteadyClock::read() + Seconds(10)).value();
  while (host_->counters().peers == 0) std::this_thread::yield();
  host_.reset();
  EXPECT_TRUE(is_hung_up(held.get()));
}

TEST_F(TcpHostTest, RefusalsOfAWithdrawnSlabLeaveTheConnectionToTheOthers) {
  start();
  TestSlab other(64);
  other.lend_on(*host_);
  const auto channel = connect();
  host_->withdraw(other.key);
  for (int round = 0; round < 4; ++round) {
    std::vector<Operation> reads;
    for (size_t page = 0; page < 32; ++page)
      reads.push_back(other.read(page, borrower_.page(page), page));
    ASSERT_EQ(channel->post(reads), reads.size());
    for (size_t i = 0; i < reads.size(); ++i)
      EXPECT_EQ(wait_one(*channel).status, CompletionStatus::kRemoteAccess);
    EXPECT_TRUE(channel->usable());
    expect_page(*channel, 3, std::byte{4});
  }
}

}  // namespace
}  // namespace farpage::rdma::tcp
