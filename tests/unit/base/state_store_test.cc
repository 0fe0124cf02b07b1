#include "base/state_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>

namespace farpage {
namespace {

constexpr size_t kSmall = 64 << 10;

// What a successor finds, while `store` goes on.
std::unique_ptr<StateStore> successor_of(const StateStore& store) {
  auto found = StateStore::take_over(::dup(store.descriptor()));
  if (!found) throw std::runtime_error(found.error().message());
  return std::move(*found);
}

TEST(StateStore, ASuccessorFindsTheLastValueOfEachName) {
  const auto store = std::move(*StateStore::create(kSmall));
  ASSERT_TRUE(store->put("target/1", "first"));
  ASSERT_TRUE(store->put("target/2", ""));
  ASSERT_TRUE(store->put("target/1", std::string("second\0value", 12)));
  ASSERT_TRUE(store->put("region/1", "x"));
  store->erase("region/1");
  store->erase("never");
  const auto found = successor_of(*store);
  EXPECT_EQ(found->get("target/1"), std::string("second\0value", 12));
  EXPECT_EQ(found->get("target/2"), "");
  EXPECT_EQ(found->get("region/1"), std::nullopt);
  EXPECT_EQ(found->all("target/").size(), 2U);
  EXPECT_EQ(found->all("region/").size(), 0U);
}

TEST(StateStore, AFullLogIsWrittenAnewWithWhatCounts) {
  const auto store = std::move(*StateStore::create(kSmall));
  ASSERT_TRUE(store->put("kept", "value"));
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_TRUE(store->put("changes", std::to_string(i)));
    ASSERT_TRUE(store->put("gone", "x"));
    store->erase("gone");
  }
  const auto found = successor_of(*store);
  EXPECT_EQ(found->get("kept"), "value");
  EXPECT_EQ(found->get("changes"), "19999");
  EXPECT_EQ(found->get("gone"), std::nullopt);
}

TEST(StateStore, AValueWithoutRoomIsRefusedAndNothingChanges) {
  const auto store = std::move(*StateStore::create(kSmall));
  ASSERT_TRUE(store->put("large", std::string(kSmall / 2, 'a')));
  const Status refused = store->put("larger", std::string(kSmall, 'b'));
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_EQ(store->get("larger"), std::nullopt);
  const auto found = successor_of(*store);
  EXPECT_EQ(found->get("large")->size(), kSmall / 2);
  EXPECT_EQ(found->get("larger"), std::nullopt);
}

TEST(StateStore, MemoryIsTheSameForTheSuccessor) {
  auto store = std::move(*StateStore::create(kSmall));
  const Mapping words = std::move(*store->memory("words", 1 << 20));
  ASSERT_EQ(words.data()[4096], std::byte{0});
  words.data()[4096] = std::byte{7};
  ASSERT_TRUE(store->memory("gone", 4096));
  store->drop_memory("gone");
  EXPECT_EQ(store->descriptors().size(), 2U);
  {
    auto found = successor_of(*store);
    const Mapping same = std::move(*found->memory("words", 1 << 20));
    EXPECT_EQ(same.data()[4096], std::byte{7});
    words.data()[8192] = std::byte{8};
    EXPECT_EQ(same.data()[8192], std::byte{8});
    const Mapping anew = std::move(*found->memory("gone", 4096));
    EXPECT_EQ(anew.data()[0], std::byte{0});
    found->release_ranges();  // another store's: it must not close them
  }
}

TEST(StateStore, SomethingElseIsRefused) {
  EXPECT_EQ(StateStore::take_over(std::move(*create_memfd("empty", 0)).release()).error().code,
            ErrorCode::kInvalid);
  EXPECT_EQ(
      StateStore::take_over(std::move(*create_memfd("zeros", 1 << 20)).release()).error().code,
      ErrorCode::kInvalid);
}

// Both values are written again and again, "b" after "a"; the log is made anew all the time.
TEST(StateStore, AProcessThatIsKilledAtAnyMomentHasWrittenWholeRecords) {
  constexpr int kKills = 40;
  const auto store = std::move(*StateStore::create(4096));
  ASSERT_TRUE(store->put("kept", "value"));
  long last = 0;
  for (int i = 0; i < kKills; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto own = successor_of(*store);
      for (long value = last + 1;; ++value) {
        (void)own->put("a", std::to_string(value));
        (void)own->put("b", std::to_string(value));
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500 + 137 * i));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const auto found = successor_of(*store);
    ASSERT_EQ(found->get("kept"), "value");
    if (!found->get("a")) continue;  // it was killed before its first call
    const long a = std::stol(*found->get("a"));
    const long b = std::stol(found->get("b").value_or("0"));
    ASSERT_TRUE(a == b || a == b + 1) << a << " and " << b;
    ASSERT_GE(a, last);
    last = a;
  }
  EXPECT_GT(last, 0);
}

}  // namespace
}  // namespace farpage
