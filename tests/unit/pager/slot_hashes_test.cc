// Dirty pages with the bytes that their slots have.
#include "pager/pages/slot_hashes.h"

#include <gtest/gtest.h>

#include "batch_rig.h"

namespace farpage::pager {
namespace {

using Lines = std::vector<std::string>;

// A remote page comes back writable, and is written if `word` is another than it had.
void come_back(BatchRig& rig, uint64_t page, uint64_t word) {
  ASSERT_EQ(rig.state(page), PageState::kRemote);
  rig.budget.take_anyway();
  rig.move(page, PageState::kFetching, PageWord::kFromRemote);
  rig.space.put(page, word, uffd::Protection::kWritable);
  rig.move(page, PageState::kDirty);
}

TEST(SlotHashes, AnUnchangedPageIsDroppedWithoutAWrite) {
  BatchRig rig({.nodes = 2});
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(10, 3));
  ASSERT_TRUE(rig.evict());
  for (const uint64_t page : {10, 11, 12})
    come_back(rig, page, page == 11 ? 7 : TargetRig::word_of(page));
  (void)rig.log.take();
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.log.of("WRITE"), (Lines{"WRITE n0 11", "WRITE n1 11"}));
  EXPECT_EQ(rig.log.of("drop"), Lines{"drop 10+3"});
  EXPECT_EQ(rig.evicted().pages_unchanged.get(), 2U);
  EXPECT_EQ(rig.evicted().pages_written.get(), 4U);
  EXPECT_EQ(rig.node(1).word(10), TargetRig::word_of(10));
  EXPECT_EQ(rig.node(1).word(11), 7U);
}

TEST(SlotHashes, AfterAFailedWriteThePageIsWrittenAgain) {
  BatchRig rig;
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(10));
  ASSERT_TRUE(rig.evict());
  come_back(rig, 10, 7);
  rig.node().answer_all(rdma::CompletionStatus::kTimedOut);  // and may have the new bytes
  rig.target.closing = true;                                 // the batch ends with what it has
  ASSERT_TRUE(rig.evict());
  rig.target.closing = false;
  ASSERT_EQ(rig.state(10), PageState::kDirty);
  rig.space.put(10, TargetRig::word_of(10), uffd::Protection::kWritable);  // as the first time
  rig.let_nodes_answer();
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.state(10), PageState::kRemote);
  EXPECT_EQ(rig.evicted().pages_unchanged.get(), 0U);
  EXPECT_EQ(rig.node().word(10), TargetRig::word_of(10));
}

TEST(SlotHashes, WithoutAReadableReplicaAnUnchangedPageStays) {
  BatchRig rig;
  rig.let_nodes_answer();
  rig.make_dirty(pages_of(10));
  ASSERT_TRUE(rig.evict());
  come_back(rig, 10, TargetRig::word_of(10));
  ASSERT_TRUE(rig.replica(10, 0).end(ReplicaState::kLost));
  ASSERT_TRUE(rig.evict());
  EXPECT_EQ(rig.state(10), PageState::kDirty);
  EXPECT_TRUE(rig.space.is_present(10));
}

std::vector<std::byte> page_with(uint8_t value) {
  std::vector<std::byte> page(kPageBytes);
  page[4095] = std::byte{value};
  return page;
}

TEST(SlotHashes, TheSameBytesInAnotherBackingRegionAreNotTheSlots) {
  auto slots = *SlotHashes::create(8);
  const auto page = page_with(1);
  EXPECT_EQ(slots.hash(BackingId{0}, page), slots.hash(BackingId{0}, page));
  EXPECT_NE(slots.hash(BackingId{0}, page), slots.hash(BackingId{1}, page));
  EXPECT_NE(slots.hash(BackingId{0}, page), slots.hash(BackingId{0}, page_with(2)));
  EXPECT_FALSE(slots.holds(PageIndex{3}, 5)) << "nothing is known";
  slots.set(PageIndex{3}, 5);
  EXPECT_TRUE(slots.holds(PageIndex{3}, 5));
  EXPECT_FALSE(slots.holds(PageIndex{3}, 6));
  slots.forget(PageIndex{3});
  EXPECT_FALSE(slots.holds(PageIndex{3}, 5));
}

TEST(SlotHashes, WhereFewAreUnchangedOneInEightIsHashedUntilThatChanges) {
  constexpr uint64_t kPages = 8000;
  auto slots = *SlotHashes::create(kPages);
  const auto wanted = [&] {
    uint64_t pages = 0;
    for (uint64_t page = 0; page < kPages; ++page) pages += slots.wants(PageIndex{page}) ? 1 : 0;
    return pages;
  };
  EXPECT_EQ(wanted(), kPages);
  for (uint64_t page = 0; page < 1000; ++page) {
    slots.set(PageIndex{page}, 1);
    (void)slots.holds(PageIndex{page}, page % 32 == 0 ? 1 : 2);
  }
  EXPECT_NEAR(static_cast<double>(wanted()), kPages / 8.0, kPages / 80.0);
  for (uint64_t page = 0; page < 100; ++page) (void)slots.holds(PageIndex{page}, 1);
  EXPECT_EQ(wanted(), kPages);
}

}  // namespace
}  // namespace farpage::pager
