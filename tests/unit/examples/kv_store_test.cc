#include "kv/store.h"

#include <gtest/gtest.h>

#include <vector>

namespace kv {
namespace {

class ManualClock final : public Clock {
 public:
  Milliseconds now() const override { return now_; }
  void advance(Milliseconds by) { now_ += by; }

 private:
  Milliseconds now_{1000};
};

// Counts the allocated bytes and allows at most `limit`.
class CountingMemory final : public std::pmr::memory_resource {
 public:
  explicit CountingMemory(size_t limit) : limit_(limit) {}
  size_t taken() const { return taken_; }

 private:
  void* do_allocate(size_t bytes, size_t alignment) override {
    if (taken_ + bytes > limit_) throw std::bad_alloc();
    taken_ += bytes;
    return std::pmr::new_delete_resource()->allocate(bytes, alignment);
  }
  void do_deallocate(void* memory, size_t bytes, size_t alignment) override {
    taken_ -= bytes;
    std::pmr::new_delete_resource()->deallocate(memory, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  const size_t limit_;
  size_t taken_ = 0;
};

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}
std::string text_of(const Store& store, const std::string& key) {
  const auto value = store.get(key);
  if (!value) return "(none)";
  return {reinterpret_cast<const char*>(value->data()), value->size()};
}

class StoreTest : public testing::Test {
 protected:
  ManualClock clock_;
  CountingMemory memory_{1000};
  Store store_{memory_, clock_};
};

TEST_F(StoreTest, WhatWasPutIsThereUntilItIsDeleted) {
  EXPECT_EQ(store_.put("a", bytes_of("first")), PutResult::kStored);
  EXPECT_EQ(store_.put("b", bytes_of("")), PutResult::kStored);
  EXPECT_EQ(text_of(store_, "a"), "first");
  EXPECT_EQ(text_of(store_, "b"), "");
  EXPECT_TRUE(store_.remove("a"));
  EXPECT_FALSE(store_.remove("a"));
  EXPECT_EQ(text_of(store_, "a"), "(none)");
  EXPECT_EQ(memory_.taken(), 0U);
}

TEST_F(StoreTest, ASecondPutReplacesTheFirstAndFreesItsMemory) {
  EXPECT_EQ(store_.put("a", bytes_of("first")), PutResult::kStored);
  EXPECT_EQ(store_.put("a", bytes_of("the second")), PutResult::kStored);
  EXPECT_EQ(text_of(store_, "a"), "the second");
  EXPECT_EQ(store_.size(), 1U);
  EXPECT_EQ(store_.value_bytes(), 10U);
  EXPECT_EQ(memory_.taken(), 10U);
}

TEST_F(StoreTest, AValueEndsExactlyAtItsTimeToLive) {
  EXPECT_EQ(store_.put("a", bytes_of("x"), Milliseconds(10)), PutResult::kStored);
  clock_.advance(Milliseconds(9));
  EXPECT_EQ(text_of(store_, "a"), "x");
  clock_.advance(Milliseconds(1));
  EXPECT_EQ(text_of(store_, "a"), "(none)");
  EXPECT_FALSE(store_.remove("a"));
  EXPECT_EQ(memory_.taken(), 0U);
}

TEST_F(StoreTest, ANewPutForgetsTheFormerTimeToLive) {
  EXPECT_EQ(store_.put("a", bytes_of("x"), Milliseconds(10)), PutResult::kStored);
  EXPECT_EQ(store_.put("a", bytes_of("y")), PutResult::kStored);
  clock_.advance(Milliseconds(100));
  EXPECT_EQ(store_.remove_expired(10), 0U);
  EXPECT_EQ(text_of(store_, "a"), "y");
}

TEST_F(StoreTest, ExpiredValuesAreFreedOldestFirst) {
  for (const int time : {30, 10, 20})
    EXPECT_EQ(store_.put("after-" + std::to_string(time), bytes_of("x"), Milliseconds(time)),
              PutResult::kStored);
  clock_.advance(Milliseconds(25));
  EXPECT_EQ(store_.remove_expired(1), 1U);
  EXPECT_EQ(store_.size(), 2U);
  EXPECT_EQ(store_.remove_expired(10), 1U);
  EXPECT_EQ(text_of(store_, "after-30"), "x");
  EXPECT_EQ(memory_.taken(), 1U);
}

TEST_F(StoreTest, ExpiredValuesMakeRoomAndLiveOnesDoNot) {
  EXPECT_EQ(store_.put("old", bytes_of(std::string(600, 'o')), Milliseconds(10)),
            PutResult::kStored);
  EXPECT_EQ(store_.put("new", bytes_of(std::string(600, 'n'))), PutResult::kNoRoom);
  EXPECT_EQ(text_of(store_, "old"), std::string(600, 'o'));
  clock_.advance(Milliseconds(10));
  EXPECT_EQ(store_.put("new", bytes_of(std::string(600, 'n'))), PutResult::kStored);
  EXPECT_EQ(store_.size(), 1U);
}

TEST_F(StoreTest, AnExpiredValueOfTheSameKeyMayBeItsOwnRoom) {
  EXPECT_EQ(store_.put("a", bytes_of(std::string(600, 'o')), Milliseconds(10)), PutResult::kStored);
  clock_.advance(Milliseconds(10));
  EXPECT_EQ(store_.put("a", bytes_of(std::string(700, 'n'))), PutResult::kStored);
  EXPECT_EQ(text_of(store_, "a"), std::string(700, 'n'));
}

TEST_F(StoreTest, APutThatFindsNoRoomChangesNothing) {
  EXPECT_EQ(store_.put("a", bytes_of("kept")), PutResult::kStored);
  EXPECT_EQ(store_.put("a", bytes_of(std::string(1001, 'x'))), PutResult::kNoRoom);
  EXPECT_EQ(text_of(store_, "a"), "kept");
  EXPECT_EQ(memory_.taken(), 4U);
}

TEST_F(StoreTest, KeysAndValuesHaveLimits) {
  EXPECT_EQ(store_.put("", bytes_of("x")), PutResult::kBadKey);
  EXPECT_EQ(store_.put(std::string(kMaxKeyBytes, 'k'), bytes_of("x")), PutResult::kStored);
  EXPECT_EQ(store_.put(std::string(kMaxKeyBytes + 1, 'k'), bytes_of("x")), PutResult::kBadKey);
  Store large(*std::pmr::new_delete_resource(), clock_);
  const std::vector<std::byte> value(kMaxValueBytes + 1);
  EXPECT_EQ(large.put("k", value), PutResult::kValueTooLong);
  EXPECT_EQ(large.put("k", std::span(value).first(kMaxValueBytes)), PutResult::kStored);
}

TEST_F(StoreTest, TheEndOfTheStoreFreesEverything) {
  {
    Store store(memory_, clock_);
    EXPECT_EQ(store.put("a", bytes_of("x")), PutResult::kStored);
    EXPECT_EQ(store.put("b", bytes_of("x"), Milliseconds(1)), PutResult::kStored);
    EXPECT_EQ(memory_.taken(), 2U);
  }
  EXPECT_EQ(memory_.taken(), 0U);
}

}  // namespace
}  // namespace kv
