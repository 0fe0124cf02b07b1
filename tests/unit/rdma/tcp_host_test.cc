// The node's data server against borrowers that do not behave.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>
#include <vector>

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
  // A bare connection, greeted.
  Fd raw() {
    const Instant deadline = SteadyClock::read() + Seconds(10);
    Fd socket = connect_to("127.0.0.1", host_->address().port, deadline).value();
    EXPECT_TRUE(send_all(socket.get(), encode(Hello{}), deadline).has_value());
    std::array<std::byte, kWelcomeBytes> welcome{};
    EXPECT_TRUE(receive_all(socket.get(), welcome, deadline).has_value());
    return socket;
  }
  // Asks for far more than any socket buffers, and reads none of it. All in one segment, so that it
  // is one batch of the host.
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
  // Whether the host hung up; waits for it.
  static bool is_hung_up(int socket) {
    std::vector<std::byte> ignored(1 << 16);
    for (;;) {
      const Status got = receive_all(socket, ignored, SteadyClock::read() + Seconds(20));
      if (!got) return got.error().code != ErrorCode::kTimedOut;
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

TEST_F(TcpHostTest, ConnectionWithoutHelloIsClosed) {
  TcpHostOptions options;
  options.hello_timeout = Milliseconds(1);
  start(options);
  const Fd socket =
      connect_to("127.0.0.1", host_->address().port, SteadyClock::read() + Seconds(10)).value();
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
  EXPECT_EQ((*host)->address().host, "node7.example");
  options = {};
  options.port = (*host)->address().port;
  EXPECT_NE(context_of(options), "accepted") << "the port is taken";
}

}  // namespace
}  // namespace farpage::rdma::tcp
