// The borrower's end against nodes that misbehave: a script on a real socket plays the node.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <future>
#include <random>
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

// The accepted connection, as seen by a script. Blocking.
class Script {
 public:
  explicit Script(Fd socket) : socket_(std::move(socket)) {}

  template <size_t N>
  std::array<std::byte, N> receive() {
    std::array<std::byte, N> bytes{};
    (void)::recv(socket_.get(), bytes.data(), N, MSG_WAITALL);
    return bytes;
  }
  void send(std::span<const std::byte> bytes, size_t piece = SIZE_MAX) {
    while (!bytes.empty()) {
      const size_t count = std::min(bytes.size(), piece);
      if (::send(socket_.get(), bytes.data(), count, MSG_NOSIGNAL) < 0) return;
      bytes = bytes.subspan(count);
    }
  }
  void welcome(const Welcome& welcome = {kProtocolVersion, WireStatus::kOk, kMaxOperationBytes}) {
    (void)receive<kHelloBytes>();
    send(encode(welcome));
  }
  void skip(size_t bytes) {
    std::vector<std::byte> ignored(bytes);
    (void)::recv(socket_.get(), ignored.data(), bytes, MSG_WAITALL);
  }
  Request request() { return decode_request(receive<kRequestBytes>()).value(); }
  void reply(const Request& request, uint8_t fill, size_t piece = SIZE_MAX) {
    send(encode(Reply{WireStatus::kOk, request.token, request.data_bytes}), piece);
    send(std::vector<std::byte>(request.data_bytes, std::byte{fill}), piece);
  }
  // Until the borrower hangs up.
  void wait_for_end() {
    std::array<std::byte, 512> ignored{};
    while (::recv(socket_.get(), ignored.data(), ignored.size(), 0) > 0) {
    }
  }

 private:
  Fd socket_;
};

class TcpChannelTest : public ::testing::Test {
 protected:
  void TearDown() override { stop(); }

  // Plays the node for one connection.
  void play(std::function<void(Script&)> script) {
    listener_ = listen_on("127.0.0.1", 0).value();
    thread_ = std::thread([this, script = std::move(script)] {
      Script connection(Fd(::accept(listener_.get(), nullptr, nullptr)));
      script(connection);
    });
  }
  void stop() {
    channel_.reset();
    if (thread_.joinable()) thread_.join();
  }
  Result<std::unique_ptr<Channel>> connect() {
    const uint16_t port = port_of(listener_.get()).value();
    return make_tcp_transport()->connect(
        {TransportKind::kTcp, to_text(HostPort{"127.0.0.1", port})}, borrower_.options, {});
  }
  void open() { channel_ = connect().value(); }

  // Nothing accesses the slab: the script makes up the bytes.
  Operation read(size_t page, uint64_t token, size_t bytes = kPageBytes) const {
    return {OperationKind::kRead, borrower_.page(page, bytes), {0x1000}, {1}, {1}, token};
  }

  TestBorrower borrower_;
  Fd listener_;
  std::thread thread_;
  std::unique_ptr<Channel> channel_;
};

TEST_F(TcpChannelTest, AddressOfAnotherFormIsRefused) {
  for (const char* text : {"", "127.0.0.1", "127.0.0.1:65536", "::1:7072", "[::1]"}) {
    const auto channel =
        make_tcp_transport()->connect({TransportKind::kTcp, text}, borrower_.options, {});
    ASSERT_FALSE(channel.has_value()) << text;
    EXPECT_EQ(channel.error().code, ErrorCode::kInvalid);
  }
}

TEST_F(TcpChannelTest, RepliesInAnyPiecesAreAssembled) {
  for (const size_t piece : {size_t{1}, size_t{23}, size_t{25}, size_t{4096}}) {
    play([&](Script& node) {
      node.welcome();
      for (uint8_t i = 1; i <= 3; ++i) node.reply(node.request(), i, piece);
      node.wait_for_end();
    });
    open();
    const std::array<Operation, 3> reads = {read(0, 10), read(1, 11, 100), read(2, 12)};
    ASSERT_EQ(channel_->post(reads), 3U);
    for (uint64_t i = 0; i < 3; ++i) {
      const Completion done = wait_one(*channel_);
      EXPECT_EQ(done.token, 10 + i);
      EXPECT_EQ(done.status, CompletionStatus::kOk);
      for (const std::byte byte : reads[i].local) ASSERT_EQ(byte, std::byte(i + 1));
    }
    stop();
  }
}

TEST_F(TcpChannelTest, RefusalAmongRepliesLeavesTheOthersRight) {
  play([&](Script& node) {
    node.welcome();
    std::vector<Request> requests;
    requests.reserve(4);
    for (int i = 0; i < 4; ++i) requests.push_back(node.request());
    // All at once, so that the data of the second is received where the first one's should be.
    std::vector<std::byte> all;
    const auto append = [&](std::span<const std::byte> bytes) {
      all.insert(all.end(), bytes.begin(), bytes.end());
    };
    append(encode(Reply{WireStatus::kRemoteAccess, requests[0].token, 0}));
    for (size_t i = 1; i < 4; ++i) {
      append(encode(Reply{WireStatus::kOk, requests[i].token, requests[i].data_bytes}));
      append(std::vector<std::byte>(requests[i].data_bytes, std::byte(i)));
    }
    node.send(all);
    node.wait_for_end();
  });
  open();
  std::vector<Operation> reads;
  for (uint64_t i = 0; i < 4; ++i) reads.push_back(read(i, i));
  ASSERT_EQ(channel_->post(reads), 4U);
  EXPECT_EQ(wait_one(*channel_).status, CompletionStatus::kRemoteAccess);
  for (uint64_t i = 1; i < 4; ++i) {
    const Completion done = wait_one(*channel_);
    EXPECT_EQ(done.token, i);
    EXPECT_EQ(done.status, CompletionStatus::kOk);
    for (const std::byte byte : reads[i].local) ASSERT_EQ(byte, std::byte(i));
  }
  EXPECT_TRUE(channel_->usable());
}

TEST_F(TcpChannelTest, AnyMixOfRepliesInAnyPiecesIsSortedOut) {
  constexpr size_t kOperations = 48;  // more than one receive call scatters into
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    std::array<bool, kOperations> refused{};
    std::vector<Operation> operations;
    for (uint64_t i = 0; i < kOperations; ++i) {
      operations.push_back(read(i, i, 1 + random() % kPageBytes));
      if (random() % 4 == 0) operations.back().kind = OperationKind::kWrite;
      refused[i] = random() % 6 == 0;
      std::ranges::fill(operations.back().local, std::byte{0xFF});
    }
    play([&](Script& node) {
      node.welcome();
      std::vector<std::byte> all;
      const auto append = [&](std::span<const std::byte> bytes) {
        all.insert(all.end(), bytes.begin(), bytes.end());
      };
      for (size_t i = 0; i < kOperations; ++i) {
        const Request request = node.request();
        if (request.kind == OperationKind::kWrite) node.skip(request.data_bytes);
        const bool data = request.kind == OperationKind::kRead && !refused[i];
        append(encode(Reply{refused[i] ? WireStatus::kRemoteAccess : WireStatus::kOk, request.token,
                            data ? request.data_bytes : 0}));
        if (data) append(std::vector<std::byte>(request.data_bytes, std::byte(i)));
      }
      for (std::span<const std::byte> left(all); !left.empty();) {
        const size_t piece = std::min<size_t>(left.size(), 1 + random() % 40'000);
        node.send(left.first(piece));
        left = left.subspan(piece);
      }
      node.wait_for_end();
    });
    open();
    ASSERT_EQ(channel_->post(operations), kOperations);
    for (uint64_t i = 0; i < kOperations; ++i) {
      const Completion done = wait_one(*channel_);
      ASSERT_EQ(done.token, i) << "seed " << seed;
      ASSERT_EQ(done.status, refused[i] ? CompletionStatus::kRemoteAccess : CompletionStatus::kOk);
    }
    for (size_t i = 0; i < kOperations; ++i) {
      if (refused[i] || operations[i].kind == OperationKind::kWrite) continue;
      for (const std::byte byte : operations[i].local)
        ASSERT_EQ(byte, std::byte(i)) << "operation " << i << ", seed " << seed;
    }
    EXPECT_TRUE(channel_->usable());
    stop();
  }
}

TEST_F(TcpChannelTest, SilentNodeTimesOutAndBreaksTheChannel) {
  borrower_.options.operation_timeout = Milliseconds(30);
  for (const PollMode mode : {PollMode::kAdaptive, PollMode::kBusy, PollMode::kEvent}) {
    borrower_.options.poll_mode = mode;
    play([](Script& node) {
      node.welcome();
      node.wait_for_end();
    });
    open();
    const std::array<Operation, 2> reads = {read(0, 1), read(1, 2)};
    ASSERT_EQ(channel_->post(reads), 2U);
    EXPECT_EQ(wait_one(*channel_).status, CompletionStatus::kTimedOut);
    EXPECT_EQ(wait_one(*channel_).status, CompletionStatus::kTimedOut);
    EXPECT_FALSE(channel_->usable());
    EXPECT_NE(channel_->why_broken().find("operation_timeout"), std::string::npos);
    EXPECT_EQ(channel_->post(reads), 0U);
    stop();
  }
}

TEST_F(TcpChannelTest, ReplyThatComesAfterTheTimeoutTouchesNoBuffer) {
  borrower_.options.operation_timeout = Milliseconds(30);
  std::promise<void> timed_out;
  play([&](Script& node) {
    node.welcome();
    const Request request = node.request();
    // The first half of the data, so that the channel times out in the middle of it.
    node.send(encode(Reply{WireStatus::kOk, request.token, request.data_bytes}));
    node.send(std::vector<std::byte>(kPageBytes / 2, std::byte{1}));
    timed_out.get_future().wait();
    node.send(std::vector<std::byte>(kPageBytes / 2, std::byte{1}));
    node.wait_for_end();
  });
  open();
  const Operation operation = read(0, 1);
  EXPECT_EQ(run(*channel_, operation), CompletionStatus::kTimedOut);
  std::fill(operation.local.begin(), operation.local.end(), std::byte{0x77});
  timed_out.set_value();
  thread_.join();  // the node has sent the rest, and the channel has closed
  std::array<Completion, 4> done;
  EXPECT_EQ(channel_->wait(done, Milliseconds(10)), 0U);
  EXPECT_EQ(std::count(operation.local.begin(), operation.local.end(), std::byte{0x77}),
            static_cast<ptrdiff_t>(kPageBytes));
}

TEST_F(TcpChannelTest, HelloCarriesTheSession) {
  borrower_.options.session = 0xfedcba9876543210;
  std::promise<uint64_t> session;
  play([&](Script& node) {
    session.set_value(decode_hello(node.receive<kHelloBytes>()).value().session);
    node.send(encode(Welcome{kProtocolVersion, WireStatus::kOk, kMaxOperationBytes}));
    node.wait_for_end();
  });
  open();
  EXPECT_EQ(session.get_future().get(), 0xfedcba9876543210U);
}

TEST_F(TcpChannelTest, NodeThatReadsNothingTimesOutAndUnsentOperationsAreFlushed) {
  borrower_.options.operation_timeout = Milliseconds(50);
  TestBorrower large(size_t{16} * 1024);
  borrower_.options.buffer = large.buffer.bytes();
  std::promise<void> ended;
  play([&](Script& node) {
    node.welcome();
    ended.get_future().wait();
  });
  open();
  std::vector<Operation> writes;
  for (uint64_t i = 0; i < 64; ++i) {
    Operation operation = read(0, i);
    operation.kind = OperationKind::kWrite;
    operation.local = large.page(i * 256, kMaxOperationBytes);
    writes.push_back(operation);
  }
  ASSERT_EQ(channel_->post(writes), 64U);
  EXPECT_EQ(wait_one(*channel_).status, CompletionStatus::kTimedOut);
  CompletionStatus last = CompletionStatus::kOk;
  for (int i = 1; i < 64; ++i) last = wait_one(*channel_).status;
  EXPECT_EQ(last, CompletionStatus::kFlushed);
  ended.set_value();
}

TEST_F(TcpChannelTest, HangUpInTheMiddleOfAReplyFailsAllInFlight) {
  play([](Script& node) {
    node.welcome();
    const Request request = node.request();
    node.send(encode(Reply{WireStatus::kOk, request.token, request.data_bytes}));
    node.send(std::vector<std::byte>(100, std::byte{1}));
  });
  open();
  const std::array<Operation, 2> reads = {read(0, 1), read(1, 2)};
  ASSERT_EQ(channel_->post(reads), 2U);
  EXPECT_EQ(wait_one(*channel_).status, CompletionStatus::kPeerGone);
  EXPECT_EQ(wait_one(*channel_).status, CompletionStatus::kPeerGone);
  EXPECT_FALSE(channel_->usable());
}

TEST_F(TcpChannelTest, ReplyThatFitsNoRequestBreaksTheChannel) {
  using Answer = std::function<void(Script&, const Request&)>;
  const std::pair<const char*, Answer> answers[] = {
      {"another token",
       [](Script& node, Request request) {
         ++request.token;
         node.reply(request, 1);
       }},
      {"another length",
       [](Script& node, Request request) {
         --request.data_bytes;
         node.reply(request, 1);
       }},
      {"no data",
       [](Script& node, Request request) {
         request.data_bytes = 0;
         node.reply(request, 1);
       }},
      {"noise", [](Script& node,
                   const Request&) { node.send(std::vector<std::byte>(4096, std::byte{0x5a})); }},
      {"one reply too many", [](Script& node, const Request& request) {
         std::vector<std::byte> twice;
         for (int i = 0; i < 2; ++i) {
           const auto header = encode(Reply{WireStatus::kOk, request.token, request.data_bytes});
           twice.insert(twice.end(), header.begin(), header.end());
           twice.resize(twice.size() + request.data_bytes);
         }
         node.send(twice);
       }}};
  for (const auto& [what, answer] : answers) {
    play([&answer = answer](Script& node) {
      node.welcome();
      answer(node, node.request());
      node.wait_for_end();
    });
    open();
    const Operation operation = read(0, 1);
    ASSERT_EQ(channel_->post({&operation, 1}), 1U);
    const CompletionStatus status = wait_one(*channel_).status;
    if (std::string_view(what) == "one reply too many") {
      EXPECT_EQ(status, CompletionStatus::kOk) << what;
    } else {
      EXPECT_EQ(status, CompletionStatus::kPeerGone) << what;
      EXPECT_FALSE(channel_->usable()) << what;
    }
    // The next operation at the latest detects the surplus reply.
    (void)run(*channel_, operation);
    EXPECT_FALSE(channel_->usable()) << what;
    stop();
  }
}

TEST_F(TcpChannelTest, ConnectRefusesANodeOfAnotherVersionAndSaysSo) {
  play([](Script& node) { node.welcome({7, WireStatus::kVersion, 0}); });
  const auto channel = connect();
  ASSERT_FALSE(channel.has_value());
  EXPECT_EQ(channel.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(channel.error().context.find("version 7"), std::string::npos);
}

TEST_F(TcpChannelTest, ConnectRefusesWhatIsNotANode) {
  play([](Script& node) {
    constexpr std::string_view kHttp = "HTTP/1.1 400 Bad Request\r\n\r\n";
    node.send(std::as_bytes(std::span(kHttp)));
  });
  const auto channel = connect();
  ASSERT_FALSE(channel.has_value());
  EXPECT_EQ(channel.error().code, ErrorCode::kUnsupported);
}

TEST_F(TcpChannelTest, ConnectGivesUpOnANodeThatSaysNothing) {
  borrower_.options.connect_timeout = Milliseconds(30);
  play([](Script& node) { node.wait_for_end(); });
  const auto channel = connect();
  ASSERT_FALSE(channel.has_value());
  EXPECT_EQ(channel.error().code, ErrorCode::kTimedOut);
}

TEST_F(TcpChannelTest, NodeMayTakeShorterOperationsThanWe) {
  play([](Script& node) {
    node.welcome({kProtocolVersion, WireStatus::kOk, 8192});
    node.wait_for_end();
  });
  open();
  EXPECT_EQ(channel_->limits().operation_bytes, 8192U);
  EXPECT_EQ(run(*channel_, read(0, 1, 8193)), CompletionStatus::kLocalError);
}

}  // namespace
}  // namespace farpage::rdma::tcp
