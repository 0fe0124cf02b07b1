// Slabs in a file, over tcp.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>

#include "rdma/file/nameless_file.h"
#include "rdma/limits.h"
#include "rdma/tcp/tcp.h"
#include "tests/unit/rdma/test_slab.h"

namespace farpage::rdma {
namespace {

constexpr size_t kSlabPages = 1024;
constexpr size_t kSlabBytes = kSlabPages * kPageBytes;

class TcpFileSlab : public ::testing::Test {
 protected:
  TcpFileSlab() {
    std::filesystem::create_directories(folder_);
    file_ = file::make_nameless_file(folder_, kSlabBytes).value();
    EXPECT_TRUE(file::write_zeros(file_.get(), 0, kSlabBytes).has_value());
    // Whoever touches it gets SIGSEGV.
    void* const reserved =
        ::mmap(nullptr, kSlabBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    addresses_ = Mapping::adopt(reserved, kSlabBytes);
    host_ = make_tcp_memory_host({.server_threads = 4, .spin_time = Nanoseconds(0)}).value();
    lend(file_.get());
  }
  ~TcpFileSlab() override { std::filesystem::remove_all(folder_); }

  void lend(int file, uint32_t generation = 1) {
    generation_ = {generation};
    key_ = host_->expose({.bytes = addresses_.bytes(), .memfd = -1, .file = file}, generation_, 0)
               .value();
  }
  std::unique_ptr<Channel> connect(uint64_t session = 0) {
    ChannelOptions options = borrower_.options;
    options.session = session;
    return make_tcp_transport()->connect(host_->address(), options, {}).value();
  }
  Operation operation(OperationKind kind, uint64_t offset, std::span<std::byte> local,
                      uint64_t token = 1) const {
    const auto base = reinterpret_cast<uintptr_t>(addresses_.data());
    return {kind, local, {base + offset}, key_, generation_, token};
  }
  Operation read(size_t page, std::span<std::byte> local, uint64_t token = 1) const {
    return operation(OperationKind::kRead, page * kPageBytes, local, token);
  }
  Operation write(size_t page, std::span<std::byte> local, uint64_t token = 1) const {
    return operation(OperationKind::kWrite, page * kPageBytes, local, token);
  }
  std::span<std::byte> filled(size_t at, size_t pages, int byte) const {
    const auto local = borrower_.page(at, pages * kPageBytes);
    std::memset(local.data(), byte, local.size());
    return local;
  }
  static bool holds(std::span<const std::byte> bytes, int byte) {
    return std::ranges::all_of(bytes,
                               [&](std::byte b) { return b == static_cast<std::byte>(byte); });
  }
  // It closes the connection: nothing is said of the slab, which would be lost to the borrower.
  static void expect_hung_up(Channel& channel, const Operation& operation) {
    EXPECT_EQ(run(channel, operation), CompletionStatus::kPeerGone);
    EXPECT_FALSE(channel.usable());
  }

  const std::string folder_ = "tcp_file_slab_test." + std::to_string(::getpid());
  TestBorrower borrower_{512};
  Fd file_;
  Mapping addresses_;
  std::unique_ptr<MemoryHost> host_;
  RemoteKey key_;
  Generation generation_;
};

TEST_F(TcpFileSlab, GivesZerosAndThenWhatWasWritten) {
  const auto channel = connect();
  ASSERT_EQ(run(*channel, read(3, filled(0, 2, 7))), CompletionStatus::kOk);
  EXPECT_TRUE(holds(borrower_.page(0, 2 * kPageBytes), 0));
  for (const size_t pages : {1, 2, 17, 256}) {
    ASSERT_EQ(run(*channel, write(5, filled(0, pages, static_cast<int>(pages)))),
              CompletionStatus::kOk);
    ASSERT_EQ(run(*channel, read(5, filled(256, pages, 99))), CompletionStatus::kOk);
    EXPECT_TRUE(holds(borrower_.page(256, pages * kPageBytes), static_cast<int>(pages)));
  }
  ASSERT_EQ(run(*channel, read(4, filled(0, 1, 7))), CompletionStatus::kOk);
  EXPECT_TRUE(holds(borrower_.page(0), 0)) << "the page before";
  const HostCounters counters = host_->counters();
  EXPECT_EQ(counters.writes, 4U);
  EXPECT_EQ(counters.bytes_written, (1 + 2 + 17 + 256) * kPageBytes);
  EXPECT_EQ(counters.reads, 6U);
}

TEST_F(TcpFileSlab, ManyOperationsInFlightEachHaveTheirOwnBytes) {
  const auto seed = static_cast<uint64_t>(::testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  constexpr size_t kPages = 8;  // of each operation
  constexpr size_t kZones = 32;
  const auto channel = connect();
  std::array<int, kZones> is{};
  for (int round = 0; round < 20; ++round) {
    std::vector<Operation> operations;
    for (size_t zone = 0; zone < kZones; ++zone) {
      const bool writes = random() % 2 == 0;
      if (writes) is[zone] = 1 + static_cast<int>(random() % 250);
      const auto local = filled(zone * kPages, kPages, writes ? is[zone] : 255);
      operations.push_back(writes ? write(zone * kPages, local, zone)
                                  : read(zone * kPages, local, zone));
    }
    ASSERT_EQ(channel->post(operations), kZones);
    for (size_t i = 0; i < kZones; ++i) {
      const Completion done = wait_one(*channel);
      ASSERT_EQ(done.status, CompletionStatus::kOk) << channel->why_broken();
      EXPECT_TRUE(holds(borrower_.page(done.token * kPages, kPages * kPageBytes), is[done.token]));
    }
  }
}

TEST_F(TcpFileSlab, TakesPackedWrites) {
  borrower_.options.pack_writes = PackWrites::kAlways;
  const auto channel = connect();
  for (const size_t pages : {1, 17, 250}) {
    ASSERT_EQ(run(*channel, write(5, filled(0, pages, static_cast<int>(pages)))),
              CompletionStatus::kOk);
    ASSERT_EQ(run(*channel, read(4, filled(256, pages + 2, 99))), CompletionStatus::kOk);
    EXPECT_TRUE(holds(borrower_.page(256), 0)) << "the page before";
    EXPECT_TRUE(holds(borrower_.page(257, pages * kPageBytes), static_cast<int>(pages)));
    EXPECT_TRUE(holds(borrower_.page(257 + pages), 0)) << "the page behind";
  }
  EXPECT_GT(host_->counters().bytes_saved, uint64_t{260} * kPageBytes);
  expect_hung_up(*channel, operation(OperationKind::kWrite, 1, borrower_.page(0)));
  host_->withdraw(key_);
  EXPECT_EQ(run(*connect(), write(5, filled(0, 3, 1))), CompletionStatus::kRemoteAccess);
}

// More than one batch of replies may own.
TEST_F(TcpFileSlab, LongReadsAtOnceAreAllAnswered) {
  const auto channel = connect();
  for (size_t i = 0; i < 4; ++i)
    ASSERT_EQ(run(*channel, write(i * 256, filled(0, 256, static_cast<int>(i + 1)))),
              CompletionStatus::kOk);
  std::vector<Operation> reads;
  for (size_t i = 0; i < 64; ++i)
    reads.push_back(read(i % 4 * 256, borrower_.page(i % 2 * 256, kMaxOperationBytes), i));
  ASSERT_EQ(channel->post(reads), reads.size());
  for (size_t i = 0; i < reads.size(); ++i)
    ASSERT_EQ(wait_one(*channel).status, CompletionStatus::kOk) << channel->why_broken();
  EXPECT_TRUE(holds(borrower_.page(256, kMaxOperationBytes), 4));
}

TEST_F(TcpFileSlab, WhatIsNoWholePageIsNoLossOfTheSlab) {
  for (const OperationKind kind : {OperationKind::kRead, OperationKind::kWrite}) {
    expect_hung_up(*connect(), operation(kind, 1, borrower_.page(0)));
    expect_hung_up(*connect(), operation(kind, 0, borrower_.page(0, 100)));
  }
  EXPECT_EQ(run(*connect(), read(0, borrower_.page(0))), CompletionStatus::kOk);
}

TEST_F(TcpFileSlab, WithdrawnOneIsRefused) {
  const auto channel = connect();
  ASSERT_EQ(run(*channel, write(0, filled(0, 1, 1))), CompletionStatus::kOk);
  const Operation late = write(0, filled(0, 1, 2));
  host_->withdraw(key_);
  EXPECT_EQ(run(*channel, late), CompletionStatus::kRemoteAccess);
  EXPECT_EQ(run(*channel, read(0, borrower_.page(0))), CompletionStatus::kRemoteAccess);
  lend(file_.get(), 2);
  ASSERT_EQ(run(*channel, read(0, borrower_.page(0))), CompletionStatus::kOk);
  EXPECT_TRUE(holds(borrower_.page(0), 1));
}

TEST_F(TcpFileSlab, DiskThatDoesNotWriteIsNoLossOfTheSlab) {
  host_->withdraw(key_);
  const std::string path = "/proc/self/fd/" + std::to_string(file_.get());
  const Fd read_only(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  ASSERT_TRUE(read_only.valid());
  lend(read_only.get(), 2);
  const auto channel = connect();
  expect_hung_up(*channel, write(0, filled(0, 1, 1)));
  const auto again = connect();
  ASSERT_EQ(run(*again, read(0, filled(0, 1, 2))), CompletionStatus::kOk);
  EXPECT_TRUE(holds(borrower_.page(0), 0));
  EXPECT_EQ(host_->counters().writes, 0U);
  host_->withdraw(key_);
}

TEST_F(TcpFileSlab, DiskThatGivesTooLittleGivesNothing) {
  ASSERT_EQ(::ftruncate(file_.get(), kPageBytes + 512), 0);
  const auto channel = connect();
  ASSERT_EQ(run(*channel, read(0, filled(0, 1, 7))), CompletionStatus::kOk);
  EXPECT_TRUE(holds(borrower_.page(0), 0));
  expect_hung_up(*channel, read(0, filled(0, 2, 7)));
  expect_hung_up(*connect(), read(8, filled(0, 1, 7)));
  EXPECT_TRUE(holds(borrower_.page(0), 7));
}

TEST_F(TcpFileSlab, NewerChannelOfASessionFencesTheOlderOne) {
  const auto older = connect(11);
  ASSERT_EQ(run(*older, write(0, filled(0, 1, 1))), CompletionStatus::kOk);
  const auto newer = connect(11);
  EXPECT_NE(run(*older, write(0, filled(0, 1, 2))), CompletionStatus::kOk);
  ASSERT_EQ(run(*newer, read(0, borrower_.page(1))), CompletionStatus::kOk);
  EXPECT_TRUE(holds(borrower_.page(1), 1));
}

TEST_F(TcpFileSlab, ManyConnectionsOfManyThreads) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (size_t t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      const auto channel = connect();
      for (int round = 1; round <= 20; ++round) {
        const bool is_right =
            run(*channel, write(t * 8, filled(t * 16, 8, round))) == CompletionStatus::kOk &&
            run(*channel, read(t * 8, filled(t * 16 + 8, 8, 255))) == CompletionStatus::kOk &&
            holds(borrower_.page(t * 16 + 8, 8 * kPageBytes), round);
        right += is_right ? 1 : 0;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right.load(), 160);
}

}  // namespace
}  // namespace farpage::rdma
