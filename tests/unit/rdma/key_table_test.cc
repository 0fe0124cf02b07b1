#include "rdma/key_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>
#include <vector>

namespace farpage::rdma {
namespace {

constexpr size_t kSlabBytes = 8192;

class KeyTableTest : public ::testing::Test {
 protected:
  RemoteKey lend(uint32_t generation = 1) {
    return table_.insert({slab_, 17}, Generation{generation}).value();
  }
  uint64_t base() const { return reinterpret_cast<uintptr_t>(slab_.data()); }
  bool allowed(RemoteKey key, uint64_t address, uint64_t bytes, uint32_t generation = 1) {
    return static_cast<bool>(
        table_.acquire(key, Generation{generation}, RemoteAddress{address}, bytes));
  }

  std::vector<std::byte> slab_ = std::vector<std::byte>(kSlabBytes);
  KeyTable table_;
};

TEST_F(KeyTableTest, RangesAreJudgedAtTheirEdges) {
  const RemoteKey key = lend();
  constexpr uint64_t kTop = std::numeric_limits<uint64_t>::max();
  struct Case {
    uint64_t address;
    uint64_t bytes;
    bool good;
  };
  for (const Case& c : {Case{base(), 1, true},
                        {base(), kSlabBytes, true},
                        {base() + kSlabBytes - 1, 1, true},
                        {base(), 0, false},
                        {base(), kSlabBytes + 1, false},
                        {base() + 1, kSlabBytes, false},
                        {base() + kSlabBytes, 1, false},
                        {base() + kSlabBytes, 0, false},
                        {base() - 1, 1, false},
                        {base() - 1, 2, false},
                        {base(), kTop, false},
                        {base() + 1, kTop, false},
                        {kTop, 1, false},
                        {kTop, kTop, false},
                        {0, kTop, false}})
    EXPECT_EQ(allowed(key, c.address, c.bytes), c.good) << c.address << " + " << c.bytes;
}

TEST_F(KeyTableTest, UseIsTheVeryRangeThatWasAskedFor) {
  const RemoteKey key = lend();
  const KeyTable::Use part = table_.acquire(key, {1}, {base() + 100}, 50);
  EXPECT_EQ(part.bytes().data(), slab_.data() + 100);
  EXPECT_EQ(part.bytes().size(), 50U);
  const KeyTable::Use whole = table_.acquire(key, {1});
  EXPECT_EQ(whole.bytes().size(), kSlabBytes);
  EXPECT_EQ(whole.memfd(), 17);
}

TEST_F(KeyTableTest, KeyAndGenerationMustBothMatch) {
  const RemoteKey key = lend(5);
  EXPECT_TRUE(allowed(key, base(), 1, 5));
  EXPECT_FALSE(allowed(key, base(), 1, 4));
  EXPECT_FALSE(allowed(key, base(), 1, 6));
  EXPECT_FALSE(allowed({key.value + 1}, base(), 1, 5));
  EXPECT_FALSE(static_cast<bool>(table_.acquire(key, {4})));
}

TEST_F(KeyTableTest, KeysAreRandomAndDiffer) {
  std::vector<uint32_t> keys;
  for (int i = 0; i < 1000; ++i) keys.push_back(lend().value);
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::unique(keys.begin(), keys.end()), keys.end());
  // Not a counter: 1000 numbers of 32 bits, sorted, lie about 4 million apart.
  EXPECT_GT(keys.back() - keys.front(), 1U << 30);
  EXPECT_EQ(table_.size(), 1000U);
}

TEST_F(KeyTableTest, EmptySlabIsRefused) {
  const Result<RemoteKey> key = table_.insert({}, Generation{1});
  ASSERT_FALSE(key.has_value());
  EXPECT_EQ(key.error().code, ErrorCode::kInvalid);
}

TEST_F(KeyTableTest, WithdrawalEndsNewUsesAtOnceAndWaitsForOldOnes) {
  const RemoteKey key = lend();
  KeyTable::Use use = table_.acquire(key, {1}, {base()}, 10);
  EXPECT_FALSE(use.withdrawn());
  KeyTable::Withdrawal withdrawal = table_.withdraw(key);
  EXPECT_TRUE(use.withdrawn());
  EXPECT_FALSE(allowed(key, base(), 1));
  EXPECT_FALSE(withdrawal.drained_within(Milliseconds(1)));
  use.release();
  EXPECT_TRUE(withdrawal.drained_within(Milliseconds(0)));
  EXPECT_FALSE(static_cast<bool>(table_.withdraw(key))) << "withdrawn twice";
}

TEST_F(KeyTableTest, MovedUseIsReleasedOnce) {
  const RemoteKey key = lend();
  KeyTable::Use first = table_.acquire(key, {1}, {base()}, 10);
  KeyTable::Use second = std::move(first);
  KeyTable::Use third = table_.acquire(key, {1}, {base()}, 10);
  third = std::move(second);
  KeyTable::Withdrawal withdrawal = table_.withdraw(key);
  EXPECT_FALSE(withdrawal.drained_within(Milliseconds(0)));
  third.release();
  EXPECT_TRUE(withdrawal.drained_within(Milliseconds(0)));
}

// The owner scribbles over the slab as soon as the withdrawal is over; a user that still held it
// would see that. (Under the thread sanitizer this is a data race as well.)
TEST_F(KeyTableTest, ConcurrentUsersNeverSeeTheSlabAfterItsWithdrawal) {
  std::atomic<uint32_t> current{0};  // the key of this round
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> uses{0};
  std::atomic<int> wrong{0};
  const auto user = [&] {
    while (!stop.load(std::memory_order_acquire)) {
      const uint32_t key = current.load(std::memory_order_acquire);
      const KeyTable::Use use = table_.acquire({key}, {1}, {base()}, kSlabBytes);
      if (!use) {
        std::this_thread::yield();
        continue;
      }
      for (const std::byte byte : use.bytes()) wrong += byte == std::byte{1} ? 0 : 1;
      uses.fetch_add(1, std::memory_order_relaxed);
    }
  };
  std::vector<std::thread> users;
  for (int i = 0; i < 3; ++i) users.emplace_back(user);
  for (int round = 0; round < 100; ++round) {
    std::fill(slab_.begin(), slab_.end(), std::byte{1});
    const RemoteKey key = lend();
    current.store(key.value, std::memory_order_release);
    const uint64_t before = uses.load();
    while (uses.load() < before + 2) std::this_thread::yield();
    { const KeyTable::Withdrawal withdrawal = table_.withdraw(key); }
    std::fill(slab_.begin(), slab_.end(), std::byte{2});
  }
  stop.store(true, std::memory_order_release);
  for (std::thread& thread : users) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(table_.size(), 0U);
}

}  // namespace
}  // namespace farpage::rdma
