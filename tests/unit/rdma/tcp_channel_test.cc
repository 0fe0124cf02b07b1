// The borrower's end against nodes that misbehave: a script on a real socket plays the node.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
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
#include "rdma/tcp/tcp_channel.h"
#include "tests/unit/rdma/test_slab.h"

namespace farpage::rdma::tcp {
namespace {

constexpr Welcome kPackingWelcome = {kProtocolVersion, WireStatus::kOk, kMaxOperationBytes, true};

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
  void receive_into(std::span<std::byte> bytes) {
    (void)::recv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL);
  }
  void skip(size_t bytes) {
    std::vector<std::byte> ignored(bytes);
    receive_into(ignored);
  }
  // A WRITE with its data as it is.
  void take_write() {
    const Request write = request();
    EXPECT_EQ(write.kind, OperationKind::kWrite);
    EXPECT_EQ(write.packed_bytes, 0U);
    skip(write.data_bytes);
    send(encode(Reply{WireStatus::kOk, write.token, 0}));
  }
  void hang_up() { socket_.reset(); }
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

  Operation write(size_t page, uint64_t token) const {
    Operation operation = read(page, token);
    operation.kind = OperationKind::kWrite;
    return operation;
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

TEST_F(TcpChannelTest, OlderNodeThatHangsUpOnTheQuestionIsAskedNothing) {
  borrower_.options.pack_writes = PackWrites::kAlways;
  borrower_.options.session = 77;
  std::promise<Hello> second;
  play([&](Script& node) {
    EXPECT_TRUE(decode_hello(node.receive<kHelloBytes>()).value().packs_writes);
    node.hang_up();
    Script again(Fd(::accept(listener_.get(), nullptr, nullptr)));
    second.set_value(decode_hello(again.receive<kHelloBytes>()).value());
    again.send(encode(Welcome{kProtocolVersion, WireStatus::kOk, kMaxOperationBytes}));
    again.take_write();
    again.wait_for_end();
  });
  open();
  const Hello hello = second.get_future().get();
  EXPECT_FALSE(hello.packs_writes);
  EXPECT_EQ(hello.session, 77U);
  EXPECT_EQ(run(*channel_, write(0, 1)), CompletionStatus::kOk);
}

TEST_F(TcpChannelTest, NodeThatHangsUpTwiceIsUnavailable) {
  borrower_.options.pack_writes = PackWrites::kAlways;
  play([&](Script& node) {
    (void)node.receive<kHelloBytes>();
    node.hang_up();
    Script again(Fd(::accept(listener_.get(), nullptr, nullptr)));
    (void)again.receive<kHelloBytes>();
  });
  const auto channel = connect();
  ASSERT_FALSE(channel.has_value());
  EXPECT_EQ(channel.error().code, ErrorCode::kUnavailable);
}

TEST_F(TcpChannelTest, NodeThatGrantsPackingUnaskedIsRefused) {
  play([](Script& node) { node.welcome(kPackingWelcome); });
  const auto channel = connect();
  ASSERT_FALSE(channel.has_value());
  EXPECT_EQ(channel.error().code, ErrorCode::kUnsupported);
}

TEST_F(TcpChannelTest, NodeOnTheSameHostIsNotAskedToPackOnASlowWire) {
  borrower_.options.pack_writes = PackWrites::kOnSlowWire;
  std::promise<bool> asked;
  play([&](Script& node) {
    asked.set_value(decode_hello(node.receive<kHelloBytes>()).value().packs_writes);
    node.send(encode(kPackingWelcome));
  });
  EXPECT_FALSE(connect().has_value());
  EXPECT_FALSE(asked.get_future().get());
}

TEST_F(TcpChannelTest, NodeThatDoesNotGrantPackingGetsDataAsItIs) {
  borrower_.options.pack_writes = PackWrites::kAlways;
  play([](Script& node) {
    node.welcome();
    node.take_write();
    node.wait_for_end();
  });
  open();
  EXPECT_EQ(run(*channel_, write(0, 1)), CompletionStatus::kOk);
}

TEST_F(TcpChannelTest, PackedWritesThatWaitForTheSocketAreSentWholeAndInOrder) {
  constexpr size_t kPages = 64;  // of a WRITE
  borrower_.options.pack_writes = PackWrites::kAlways;
  TestBorrower large(kPages * 64);
  std::mt19937_64 random(5);
  for (size_t p = 0; p < kPages * 64; ++p) {
    const std::span<std::byte> page = large.page(p);
    std::memset(page.data(), static_cast<int>(p), page.size());
    if (p % 4 != 0) std::ranges::generate(page, [&] { return static_cast<std::byte>(random()); });
  }
  borrower_.options.buffer = large.buffer.bytes();
  std::promise<void> posted;
  play([&](Script& node) {
    node.welcome(kPackingWelcome);
    posted.get_future().wait();
    for (size_t i = 0; i < 64; ++i) {
      const Request write = node.request();
      ASSERT_EQ(write.data_bytes, kPages * kPageBytes);
      std::vector<std::byte> packed(write.packed_bytes);
      node.receive_into(packed);
      std::vector<std::byte> page(kPageBytes);
      std::span<const std::byte> rest = packed;
      for (size_t p = 0; p < kPages; ++p) {
        const size_t bytes = kPackedLengthBytes + packed_length(rest);
        ASSERT_TRUE(unpack_page(rest.first(bytes), page));
        rest = rest.subspan(bytes);
        ASSERT_EQ(std::memcmp(page.data(), large.page(i * kPages + p).data(), kPageBytes), 0);
      }
      EXPECT_TRUE(rest.empty());
      node.send(encode(Reply{WireStatus::kOk, write.token, 0}));
    }
    node.wait_for_end();
  });
  open();
  std::vector<Operation> writes;
  for (uint64_t i = 0; i < 64; ++i) {
    writes.push_back(write(0, i));
    writes.back().local = large.page(i * kPages, kPages * kPageBytes);
  }
  ASSERT_EQ(channel_->post(writes), 64U);
  posted.set_value();
  for (uint64_t i = 0; i < 64; ++i) {
    const Completion done = wait_one(*channel_);
    EXPECT_EQ(done.status, CompletionStatus::kOk) << channel_->why_broken();
    EXPECT_EQ(done.token, i);
  }
}

// The sender's kernel paces a socket as a slow wire would.
class PacedChannelTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 64 * kPageBytes;  // of a WRITE

  PacedChannelTest() {
    host_ = make_tcp_memory_host({}).value();
    slab_.lend_on(*host_);
  }
  // Returns the bytes that packing has saved.
  uint64_t write_many(int writes, uint32_t bytes_per_second) {
    borrower_.options.pack_writes = PackWrites::kOnSlowWire;
    const Instant deadline = SteadyClock::read() + Seconds(20);
    Fd socket =
        connect_to("127.0.0.1", host_port_from(host_->address().text)->port, deadline).value();
    std::array<std::byte, kWelcomeBytes> welcome{};
    EXPECT_TRUE(send_all(socket.get(), encode(Hello{.packs_writes = true}), deadline));
    EXPECT_TRUE(receive_all(socket.get(), welcome, deadline));
    EXPECT_TRUE(decode_welcome(welcome)->packs_writes);
    EXPECT_EQ(::setsockopt(socket.get(), SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_second,
                           sizeof bytes_per_second),
              0);
    TcpChannel channel(std::move(socket), "node", borrower_.options, limits_for(borrower_.options),
                       std::move(*WritePacker::create(PackWrites::kOnSlowWire)));
    for (int i = 0; i < writes; ++i) {
      const Operation write = slab_.write(0, borrower_.page(0, kBytes));
      EXPECT_EQ(run(channel, write), CompletionStatus::kOk);
      EXPECT_EQ(std::memcmp(write.local.data(), slab_.memory.data(), kBytes), 0);
    }
    return host_->counters().bytes_saved;
  }

  TestSlab slab_{64};
  TestBorrower borrower_{64};
  std::unique_ptr<MemoryHost> host_;
};

TEST_F(PacedChannelTest, WritesArePackedOnceTheWireIsKnownToBeSlow) {
  const uint64_t saved = write_many(60, 50'000'000);  // zeros
  EXPECT_GT(saved, 30 * kBytes);
  EXPECT_LT(saved, 59 * kBytes);
}

TEST_F(PacedChannelTest, NoiseIsSentAsItIsOnASlowWire) {
  std::mt19937_64 random(3);
  std::ranges::generate(borrower_.buffer.bytes(), [&] { return static_cast<std::byte>(random()); });
  EXPECT_EQ(write_many(60, 50'000'000), 0U);
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
