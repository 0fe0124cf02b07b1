#include "rdma/key_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <random>
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

// The owner overwrites the slab as soon as the withdrawal has returned; a user that still held it
// would see that. (Under the thread sanitizer this is a data race as well.)
TEST_F(KeyTableTest, ConcurrentUsersNeverSeeTheSlabAfterItsWithdrawal) {
  std::mutex key_mutex;
  RemoteKey current;  // the key of this round; guarded by key_mutex
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> uses{0};
  std::atomic<int> wrong{0};
  const auto user = [&] {
    while (!stop.load(std::memory_order_acquire)) {
      RemoteKey key;
      {
        const std::lock_guard lock(key_mutex);
        key = current;
      }
      const KeyTable::Use use = table_.acquire(key, {1}, {base()}, kSlabBytes);
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
    {
      const std::lock_guard lock(key_mutex);
      current = key;
    }
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

TEST_F(KeyTableTest, MillionWrongKeysOpenNothing) {
  const RemoteKey key = lend();
  std::mt19937_64 random(20261123);
  for (uint32_t i = 0; i < 1'000'000; ++i) {
    // The handle is not secret: a guesser may know it, and all bits of the secret but one.
    RemoteKey guess = key;
    if (i % 4 == 0) guess.value = static_cast<uint32_t>(random());
    if (i < 128) {
      guess.secret[i / 64] ^= uint64_t{1} << (i % 64);
    } else {
      guess.secret = {random(), i % 2 == 0 ? key.secret[1] : random()};
    }
    const KeyTable::Use use = table_.acquire(guess, Generation{1}, RemoteAddress{base()}, 1);
    ASSERT_FALSE(static_cast<bool>(use)) << i;
    ASSERT_TRUE(use.key_is_unknown()) << i;
  }
  EXPECT_TRUE(allowed(key, base(), 1));
}

TEST_F(KeyTableTest, WithdrawnKeysAreToldFromUnknownOnesAndNeverLentAgain) {
  const RemoteKey key = lend();
  (void)table_.withdraw(key);
  const KeyTable::Use withdrawn = table_.acquire(key, Generation{1});
  EXPECT_FALSE(static_cast<bool>(withdrawn));
  EXPECT_FALSE(withdrawn.key_is_unknown());
  RemoteKey near = key;
  near.secret[1] ^= 1;
  EXPECT_TRUE(table_.acquire(near, Generation{1}).key_is_unknown());
  const RemoteKey other = lend();
  EXPECT_NE(other.value, key.value);
  EXPECT_FALSE(table_.acquire(other, Generation{2}).key_is_unknown()) << "another generation";
  // Only the latest are remembered.
  for (size_t i = 0; i < KeyTable::kMaxRemembered; ++i) (void)table_.withdraw(lend());
  EXPECT_TRUE(table_.acquire(key, Generation{1}).key_is_unknown());
}

}  // namespace
}  // namespace farpage::rdma
