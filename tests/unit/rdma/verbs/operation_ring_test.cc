#include "rdma/verbs/operation_ring.h"

#include <gtest/gtest.h>

#include <array>

namespace farpage::rdma::verbs {
namespace {

std::vector<Completion> take_all(OperationRing& ring) {
  std::array<Completion, 3> some;
  std::vector<Completion> all;
  while (const size_t count = ring.take(some)) all.insert(all.end(), &some[0], &some[0] + count);
  return all;
}

TEST(OperationRing, ACompletionSaysThatAllEarlierOnesSucceeded) {
  OperationRing ring(8);
  for (uint64_t i = 0; i < 5; ++i) ring.push(100 + i, Instant(0));
  EXPECT_TRUE(ring.complete(3, CompletionStatus::kOk));
  const auto done = take_all(ring);
  ASSERT_EQ(done.size(), 4U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(done[i].token, 100 + i);
    EXPECT_EQ(done[i].status, CompletionStatus::kOk);
  }
  EXPECT_TRUE(ring.awaits_completion());
}

TEST(OperationRing, AnErrorBelongsToItsOperationAlone) {
  OperationRing ring(8);
  for (uint64_t i = 0; i < 4; ++i) ring.push(i, Instant(0));
  ring.complete(2, CompletionStatus::kRemoteAccess);
  ring.abandon(Instant(-1));
  const auto done = take_all(ring);
  ASSERT_EQ(done.size(), 4U);
  EXPECT_EQ(done[1].status, CompletionStatus::kOk);
  EXPECT_EQ(done[2].status, CompletionStatus::kRemoteAccess);
  EXPECT_EQ(done[3].status, CompletionStatus::kFlushed);
}

TEST(OperationRing, WhatCompletesTwiceOrWasNeverPostedIsIgnored) {
  OperationRing ring(4);
  ring.push(1, Instant(0));
  EXPECT_FALSE(ring.complete(1, CompletionStatus::kOk));
  EXPECT_TRUE(ring.complete(0, CompletionStatus::kOk));
  EXPECT_FALSE(ring.complete(0, CompletionStatus::kOk));
  EXPECT_EQ(take_all(ring).size(), 1U);
}

TEST(OperationRing, RoomComesBackWhenCompletionsAreTaken) {
  OperationRing ring(2);
  for (uint64_t lap = 0; lap < 5; ++lap) {
    EXPECT_EQ(ring.room(), 2U);
    const uint64_t first = ring.next_sequence();
    ring.push(2 * lap, Instant(0));
    ring.push(2 * lap + 1, Instant(0));
    EXPECT_EQ(ring.room(), 0U);
    ring.complete(first + 1, CompletionStatus::kOk);
    EXPECT_EQ(ring.room(), 0U) << "completed, but not taken";
    const auto done = take_all(ring);
    ASSERT_EQ(done.size(), 2U);
    EXPECT_EQ(done[1].token, 2 * lap + 1);
  }
  EXPECT_TRUE(ring.empty());
}

TEST(OperationRing, ARefusedOperationCompletesInItsTurnWithItsOwnStatus) {
  OperationRing ring(8);
  ring.push_refused(1, CompletionStatus::kLocalError);
  EXPECT_EQ(take_all(ring).size(), 1U) << "nothing is before it";
  ring.push(2, Instant(0));
  ring.push_refused(3, CompletionStatus::kLocalError);
  ring.push(4, Instant(0));
  ring.push_refused(5, CompletionStatus::kLocalError);
  EXPECT_TRUE(take_all(ring).empty());
  ring.complete(1, CompletionStatus::kOk);
  EXPECT_EQ(take_all(ring).size(), 2U);
  ring.abandon(Instant(-1));
  const auto done = take_all(ring);
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].status, CompletionStatus::kFlushed);
  EXPECT_EQ(done[1].status, CompletionStatus::kLocalError);
}

TEST(OperationRing, AbandoningTellsLateOperationsFromFlushedOnes) {
  OperationRing ring(4);
  ring.push(1, Instant(10));
  ring.push(2, Instant(20));
  EXPECT_EQ(ring.oldest_posted_at(), Instant(10));
  ring.abandon(Instant(10));
  const auto done = take_all(ring);
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].status, CompletionStatus::kTimedOut);
  EXPECT_EQ(done[1].status, CompletionStatus::kFlushed);
}

}  // namespace
}  // namespace farpage::rdma::verbs
