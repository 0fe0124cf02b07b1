// The contract: which operations are refused, and which operations a refusal fails.
#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>

#include "tests/contract/contract_suite.h"

namespace farpage::rdma::contract {
namespace {

TEST_P(TransportContract, UnknownKeyIsRefused) {
  const Slab& slab = lend(kSlabBytes);
  auto channel = connect();
  for (const OperationKind kind : {OperationKind::kRead, OperationKind::kWrite}) {
    Operation operation = read(slab, 0, local(0, kPageBytes));
    operation.kind = kind;
    operation.key.value ^= 0x5a5a5a5a;
    EXPECT_EQ(run_anew(channel, operation), CompletionStatus::kRemoteAccess);
  }
  host_->withdraw(slab.key);
  EXPECT_TRUE(is_original(slab.memory.bytes(), 0));
}

TEST_P(TransportContract, KeyOfAnotherLeaseIsRefused) {
  const Slab& mine = lend(kSlabBytes);
  const Slab& other = lend(kSlabBytes);
  auto channel = connect();
  for (const OperationKind kind : {OperationKind::kRead, OperationKind::kWrite}) {
    Operation operation = read(other, 0, local(0, kPageBytes));
    operation.kind = kind;
    operation.key = mine.key;
    EXPECT_EQ(run_anew(channel, operation), CompletionStatus::kRemoteAccess);
  }
  host_->withdraw(other.key);
  EXPECT_TRUE(is_original(other.memory.bytes(), 0));
}

TEST_P(TransportContract, WrongGenerationIsRefused) {
  if (!harness_->checks_generation()) GTEST_SKIP() << "the rkey alone stands for the generation";
  const Slab& slab = lend(kSlabBytes, 7);
  auto channel = connect();
  for (const uint32_t generation : {6U, 8U, 0U}) {
    Operation operation = read(slab, 0, local(0, kPageBytes));
    operation.generation = {generation};
    EXPECT_EQ(run_anew(channel, operation), CompletionStatus::kRemoteAccess) << generation;
    EXPECT_EQ(run_anew(channel, read(slab, 0, local(0, kPageBytes))), CompletionStatus::kOk);
    operation = write(slab, 0, local(0, kPageBytes));
    operation.generation = {generation};
    EXPECT_EQ(run_anew(channel, operation), CompletionStatus::kRemoteAccess) << generation;
  }
}

TEST_P(TransportContract, RightOfAnEarlierLeaseIsRefusedInALaterOne) {
  const Slab& slab = lend(kSlabBytes, 1);
  auto channel = connect();
  const Operation stale = read(slab, 0, local(0, kPageBytes));
  ASSERT_EQ(run(*channel, stale), CompletionStatus::kOk);
  host_->withdraw(slab.key);
  const Slab& again = lend(kSlabBytes, 2);
  EXPECT_EQ(run_anew(channel, stale), CompletionStatus::kRemoteAccess);
  EXPECT_EQ(run_anew(channel, read(again, 0, local(0, kPageBytes))), CompletionStatus::kOk);
}

TEST_P(TransportContract, Defect12RangeThatLeavesTheSlabIsRefused) {
  const Slab& slab = lend(kSlabBytes);
  auto channel = connect();
  struct Case {
    const char* what;
    RemoteAddress address;
    size_t bytes;
  };
  const uint64_t top = std::numeric_limits<uint64_t>::max();
  const uint64_t base = slab.at(0).value;
  const Case cases[] = {{"one byte before", {base - 1}, 1},
                        {"begins before", {base - 1}, kPageBytes},
                        {"a page before", {base - kPageBytes}, kPageBytes},
                        {"one byte past the end", {base + kSlabBytes}, 1},
                        {"ends past the end", {base + kSlabBytes - kPageBytes + 1}, kPageBytes},
                        {"begins at the end", {base + kSlabBytes}, kPageBytes},
                        {"at zero", {0}, kPageBytes},
                        {"wraps around", {top - 100}, kPageBytes},
                        {"the last byte", {top}, 1}};
  for (const Case& c : cases) {
    for (const OperationKind kind : {OperationKind::kRead, OperationKind::kWrite}) {
      Operation operation = read(slab, 0, local(0, c.bytes));
      operation.kind = kind;
      operation.remote = c.address;
      EXPECT_EQ(run_anew(channel, operation), CompletionStatus::kRemoteAccess) << c.what;
    }
  }
  EXPECT_EQ(run_anew(channel, read(slab, kSlabBytes - 1, local(0, 1))), CompletionStatus::kOk);
  host_->withdraw(slab.key);
  EXPECT_TRUE(is_original(slab.memory.bytes(), 0));
}

TEST_P(TransportContract, LocalSideOutOfBoundsIsRefusedAndHarmsNothing) {
  const Slab& slab = lend(kSlabBytes);
  const auto channel = connect();
  Mapping elsewhere = Mapping::anonymous(kPageBytes).value();
  const auto status = [&](std::span<std::byte> range) {
    return run(*channel, read(slab, 0, range));
  };
  EXPECT_EQ(status(local(0, 0)), CompletionStatus::kLocalError) << "no bytes";
  EXPECT_EQ(status(elsewhere.bytes()), CompletionStatus::kLocalError) << "outside the buffer";
  EXPECT_EQ(status({buffer_.data() + kBufferBytes - 100, 200}), CompletionStatus::kLocalError)
      << "past its end";
  const size_t too_long = size_t{channel->limits().operation_bytes} + 1;
  if (too_long <= kBufferBytes) {
    EXPECT_EQ(status(local(0, too_long)), CompletionStatus::kLocalError) << "too long";
  }
  EXPECT_TRUE(channel->usable());
  EXPECT_EQ(status(local(0, kPageBytes)), CompletionStatus::kOk);
}

TEST_P(TransportContract, Defect3RefusalReachesItsWaiterAlone) {
  constexpr size_t kOperations = 9;
  constexpr size_t kBad = 4;
  const Slab& slab = lend(kSlabBytes);
  auto channel = connect();
  std::vector<Operation> operations;
  for (size_t i = 0; i < kOperations; ++i)
    operations.push_back(read(slab, i * kPageBytes, local(i * kPageBytes, kPageBytes), i));
  operations[kBad].key.value ^= 0x5a5a5a5a;
  ASSERT_EQ(channel->post(operations), kOperations);
  const auto done = drain(*channel, kOperations);
  for (size_t i = 0; i < kOperations; ++i) {
    if (i == kBad) {
      EXPECT_EQ(done.at(i), CompletionStatus::kRemoteAccess);
    } else if (done.at(i) == CompletionStatus::kOk) {
      EXPECT_TRUE(is_original(local(i * kPageBytes, kPageBytes), i * kPageBytes));
    } else {
      EXPECT_FALSE(channel->usable()) << "operation " << i << " failed for another one's sake";
      EXPECT_EQ(done.at(i), CompletionStatus::kFlushed);
    }
  }
  EXPECT_EQ(run_anew(channel, read(slab, 0, local(0, kPageBytes))), CompletionStatus::kOk);
}

TEST_P(TransportContract, WithdrawnSlabIsRefusedAndOthersAreNot) {
  const Slab& kept = lend(kSlabBytes);
  const Slab& taken = lend(kSlabBytes);
  auto channel = connect();
  ASSERT_EQ(run(*channel, read(taken, 0, local(0, kPageBytes))), CompletionStatus::kOk);
  host_->withdraw(taken.key);
  std::fill(local(0, kPageBytes).begin(), local(0, kPageBytes).end(), std::byte{0xEE});
  EXPECT_EQ(run_anew(channel, write(taken, 0, local(0, kPageBytes))),
            CompletionStatus::kRemoteAccess);
  EXPECT_EQ(run_anew(channel, read(taken, 0, local(0, kPageBytes))),
            CompletionStatus::kRemoteAccess);
  EXPECT_TRUE(is_original(taken.memory.bytes(), 0));
  EXPECT_EQ(run_anew(channel, read(kept, 0, local(0, kPageBytes))), CompletionStatus::kOk);
  host_->withdraw(taken.key);  // a second time: no effect
}

// Once withdraw() has returned, only the node uses the memory: no READ may still see it.
TEST_P(TransportContract, NobodyTouchesASlabOnceItsWithdrawalReturned) {
  for (int round = 0; round < 5; ++round) {
    Slab& slab = lend(kSlabBytes);
    std::atomic<bool> reading{false};
    std::atomic<int> wrong{0};
    std::thread reader([&] {
      const auto channel = connect();
      for (bool refused = false; !refused && channel->usable();) {
        std::vector<Operation> reads;
        for (size_t i = 0; i < 16; ++i)
          reads.push_back(read(slab, i * kPageBytes, local(i * kPageBytes, kPageBytes), i));
        const size_t posted = channel->post(reads);
        for (const auto& [token, status] : drain(*channel, posted)) {
          refused |= status != CompletionStatus::kOk;
          if (status != CompletionStatus::kOk) continue;
          if (!is_original(local(token * kPageBytes, kPageBytes), token * kPageBytes)) ++wrong;
        }
        reading.store(true);
        reading.notify_all();
      }
    });
    reading.wait(false);
    host_->withdraw(slab.key);
    std::fill(slab.memory.bytes().begin(), slab.memory.bytes().end(), std::byte{0xEE});
    reader.join();
    EXPECT_EQ(wrong.load(), 0);
  }
}

}  // namespace
}  // namespace farpage::rdma::contract
