// Checksums of slots, and Dirty pages with the bytes that their slots have.
#include "pager/pages/slot_checksums.h"

#include <gtest/gtest.h>

#include <set>

#include "batch_rig.h"
#include "pager/evict/unchanged_sample.h"

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

TEST(SlotChecksums, AnUnchangedPageIsDroppedWithoutAWrite) {
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

TEST(SlotChecksums, AfterAFailedWriteThePageIsWrittenAgain) {
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

TEST(SlotChecksums, WithoutAReadableReplicaAnUnchangedPageStays) {
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

SlotChecksums make_checksums(uint64_t pages) {
  return SlotChecksums(std::move(*Mapping::anonymous(SlotChecksums::memory_bytes(pages))));
}

TEST(SlotChecksums, OtherBytesThanWereSetDoNotMatch) {
  SlotChecksums slots = make_checksums(8);
  const PageIndex page{3};
  EXPECT_TRUE(slots.match(page, page_with(1))) << "nothing is known";
  slots.set(page, slots.of(page_with(1)));
  EXPECT_TRUE(slots.match(page, page_with(1)));
  EXPECT_FALSE(slots.match(page, page_with(2)));
  EXPECT_TRUE(slots.match(PageIndex{2}, page_with(2))) << "of another page";
  slots.forget(page);
  EXPECT_EQ(slots.known(page), 0U);
  EXPECT_TRUE(slots.match(page, page_with(2)));
}

TEST(SlotChecksums, EachBitOfAPageCounts) {
  const SlotChecksums slots = make_checksums(1);
  std::vector<std::byte> page(kPageBytes);
  std::set<uint64_t> seen{slots.of(page)};
  for (size_t bit = 0; bit < kPageBytes * 8; ++bit) {
    page[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_TRUE(seen.insert(slots.of(page)).second) << bit;
    page[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(SlotChecksums, WhoMapsTheMemoryAgainFindsThem) {
  const Fd memory = std::move(*create_memfd("checksums", SlotChecksums::memory_bytes(8)));
  const auto map = [&] {
    return SlotChecksums(std::move(*Mapping::shared(memory.get(), SlotChecksums::memory_bytes(8))));
  };
  SlotChecksums before = map();
  before.set(PageIndex{7}, before.of(page_with(1)));
  const SlotChecksums after = map();
  EXPECT_TRUE(after.match(PageIndex{7}, page_with(1)));
  EXPECT_FALSE(after.match(PageIndex{7}, page_with(2)));
}

TEST(SlotChecksums, TwoRegionsHaveTwoSeeds) {
  EXPECT_NE(make_checksums(1).of(page_with(1)), make_checksums(1).of(page_with(1)));
}

TEST(SlotChecksums, APageHasItsChecksumWhenItIsRemoteAndNoneWhileItIsWritten) {
  BatchRig rig;
  rig.make_dirty(pages_of(10));
  const SlotChecksums& slots = rig.target.checksums_of(PageWord());
  ASSERT_TRUE(rig.begin());
  EXPECT_EQ(slots.known(PageIndex{10}), 0U) << "the node has not acknowledged the bytes";
  rig.let_nodes_answer();
  rig.node().answer();
  ASSERT_TRUE(rig.batch.finish());
  ASSERT_EQ(rig.state(10), PageState::kRemote);
  const uint64_t first = slots.known(PageIndex{10});
  EXPECT_NE(first, 0U);
  come_back(rig, 10, 7);
  rig.node().answer_all(std::nullopt);
  ASSERT_TRUE(rig.begin());
  EXPECT_EQ(slots.known(PageIndex{10}), 0U) << "the WRITE is on its way";
  rig.node().answer();
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_NE(slots.known(PageIndex{10}), first);
}

TEST(UnchangedSample, WhereFewAreUnchangedOneInEightIsComparedUntilThatChanges) {
  constexpr uint64_t kPages = 8000;
  UnchangedSample sample;
  const auto wanted = [&] {
    uint64_t pages = 0;
    for (uint64_t page = 0; page < kPages; ++page) pages += sample.wants(PageIndex{page}) ? 1 : 0;
    return pages;
  };
  EXPECT_EQ(wanted(), kPages);
  for (uint64_t page = 0; page < 1000; ++page) sample.compared(page % 32 == 0);
  EXPECT_NEAR(static_cast<double>(wanted()), kPages / 8.0, kPages / 80.0);
  for (uint64_t page = 0; page < 100; ++page) sample.compared(true);
  EXPECT_EQ(wanted(), kPages);
}

}  // namespace
}  // namespace farpage::pager
