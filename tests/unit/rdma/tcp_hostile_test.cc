// A thousand connections that send invalid frames, beside one honest borrower.
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/host_port.h"
#include "rdma/limits.h"
#include "rdma/tcp/frame.h"
#include "rdma/tcp/socket.h"
#include "rdma/tcp/tcp.h"
#include "tests/unit/rdma/process_use.h"
#include "tests/unit/rdma/test_slab.h"

namespace farpage::rdma::tcp {
namespace {

using Bytes = std::vector<std::byte>;

// Makes invalid streams from a seed.
class Attacker {
 public:
  Attacker(uint64_t seed, const TestSlab& slab) : random_(seed), slab_(slab) {}

  // The bytes of one connection. At least one frame in it is malformed or cut off.
  Bytes stream() {
    Bytes bytes;
    const uint64_t kind = random_() % 9;
    if (kind == 0) return noise(1 + random_() % 2000);
    if (kind == 1) return damaged(encode(Hello{}));
    append(bytes, encode(Hello{.packs_writes = kind == 8 || random_() % 2 == 0}));
    for (uint64_t good = random_() % 3; good > 0; --good) append(bytes, encode(request()));
    switch (kind) {
      case 2:
        append(bytes, encode(Hello{}));
        append(bytes, noise(100));
        break;
      case 3: {  // lengths out of range
        Request wrong = request();
        constexpr uint32_t kLengths[] = {0, kMaxOperationBytes + 1, 0x7fffffff, 0xffffffff};
        wrong.data_bytes = kLengths[random_() % 4];
        append(bytes, encode(wrong));
        append(bytes, noise(random_() % 200));
        break;
      }
      case 4: {  // a truncated WRITE
        Request write = request();
        write.kind = OperationKind::kWrite;
        write.key.value ^= 1;  // so it must not reach the slab
        write.data_bytes = 5000;
        append(bytes, encode(write));
        append(bytes, noise(random_() % 5000));
        break;
      }
      case 5: {  // cut off in the header
        const auto whole = encode(request());
        append(bytes, std::span(whole).first(1 + random_() % (whole.size() - 1)));
        break;
      }
      case 8: {  // pages that are no lz4 blocks, to pages that nobody reads
        Request write = request();
        write.kind = OperationKind::kWrite;
        write.data_bytes = static_cast<uint32_t>(kPageBytes * (1 + random_() % 16));
        write.packed_bytes = static_cast<uint32_t>(write.data_bytes / kPageBytes *
                                                   (3 + random_() % (kPageBytes - 1)));
        write.address.value += 128 * kPageBytes;
        append(bytes, encode(write));
        append(bytes, noise(random_() % 4 == 0 ? 10 : write.packed_bytes));
        break;
      }
      case 6:
        append(bytes, noise(kRequestBytes + random_() % 100'000));
        break;
      default:
        append(bytes, damaged(encode(request())));
        append(bytes, noise(random_() % 100));
    }
    return bytes;
  }

 private:
  static void append(Bytes& bytes, std::span<const std::byte> more) {
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  Bytes noise(size_t count) {
    Bytes bytes(count);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_());
    return bytes;
  }
  // A READ that is valid, or refused for its key or its bounds.
  Request request() {
    Request request{OperationKind::kRead, random_(), {}, slab_.key, slab_.generation, 0};
    request.address = {reinterpret_cast<uintptr_t>(slab_.memory.data())};
    request.data_bytes = static_cast<uint32_t>(1 + random_() % 8192);
    if (random_() % 3 == 0) request.address.value += random_();
    if (random_() % 3 == 0) request.key.value = static_cast<uint32_t>(random_());
    return request;
  }
  // Damages the first bytes, which all frames have in common.
  template <size_t N>
  Bytes damaged(std::array<std::byte, N> frame) {
    frame[random_() % 12] ^= static_cast<std::byte>(1 + random_() % 255);
    return {frame.begin(), frame.end()};
  }

  std::mt19937_64 random_;
  const TestSlab& slab_;
};

class TcpHostileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    spdlog::set_level(spdlog::level::err);
    host_ = make_tcp_memory_host({}).value();
    slab_.lend_on(*host_);
  }

  // One connection; returns when the host has hung up.
  void attack(const Bytes& bytes) {
    const Instant deadline = SteadyClock::read() + Seconds(20);
    const Fd socket =
        connect_to("127.0.0.1", host_port_from(host_->address().text)->port, deadline).value();
    (void)send_all(socket.get(), bytes, deadline);
    ::shutdown(socket.get(), SHUT_WR);
    Bytes replies(1 << 16);
    const Status end = receive_all(socket.get(), replies, deadline);
    ASSERT_FALSE(end.has_value());
    ASSERT_NE(end.error().code, ErrorCode::kTimedOut) << "the connection was not closed";
  }

  TestSlab slab_{256};
  TestBorrower borrower_;
  std::unique_ptr<MemoryHost> host_;
};

TEST_F(TcpHostileTest, ThousandMalformedStreamsEndTheirConnectionsAndHarmNobody) {
  const uint64_t seed = static_cast<uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE(::testing::Message() << "seed " << seed << " (--gtest_random_seed)");
  Attacker attacker(seed, slab_);
  const auto channel =
      make_tcp_transport()->connect(host_->address(), borrower_.options, {}).value();
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  uint64_t honest_operations = 0;
  std::thread honest([&] {
    for (size_t i = 0; !stop.load(std::memory_order_acquire); ++i, ++honest_operations) {
      const size_t page = i % 128;  // the attackers' WRITEs have wrong keys: no page changes
      const CompletionStatus status = run(*channel, slab_.read(page, borrower_.page(0)));
      wrong += status != CompletionStatus::kOk || borrower_.page(0)[77] != std::byte(page + 1);
    }
  });
  for (int i = 0; i < 50; ++i) attack(attacker.stream());  // warms up the allocators
  wait_for_peers(*host_, 1);
  const size_t descriptors = open_descriptors();
  const size_t resident = resident_bytes();
  for (int i = 0; i < 1000 && !HasFatalFailure(); ++i) attack(attacker.stream());
  stop.store(true, std::memory_order_release);
  honest.join();
  wait_for_peers(*host_, 1);
  EXPECT_EQ(open_descriptors(), descriptors);
  if (kResidentBytesTell) {
    EXPECT_LT(resident_bytes(), resident + (size_t{4} << 20));
  }
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GT(honest_operations, 0U);
  EXPECT_TRUE(channel->usable());
  // Truncated streams are not counted: about 5 of 8 are malformed.
  EXPECT_GT(host_->counters().malformed, 500U);
}

}  // namespace
}  // namespace farpage::rdma::tcp
