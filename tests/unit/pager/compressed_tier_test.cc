// Compressed copies on their way: made by an eviction, used by a fault or a prefetch.
#include <gtest/gtest.h>

#include <array>

#include "base/page_codec.h"
#include "batch_rig.h"
#include "fetcher_rig.h"
#include "pager/fault/discard.h"
#include "pager/fault/prefetcher.h"
#include "pager/fork/fork_in_progress.h"

namespace farpage::pager {
namespace {

using Call = FakeAddressSpace::Call;
using Lines = std::vector<std::string>;
using uffd::FaultKind;

bool has_flag(const TargetRig& rig, uint64_t page) {
  return compressed_flag(rig.table.load(PageIndex{page})) != 0;
}

// What the pages of an eviction leave behind, with a budget that has room for a pool.
class TierRig : public FetcherRig {
 public:
  // Without checksums: what nodes have is changed, to see what is read.
  TierRig() : TierRig({.budget_pages = 100, .keeps_copies = true, .checksums = false}) {}
  explicit TierRig(const TargetRigOptions& options) : FetcherRig(options) {
    for (const auto& each : nodes) each->answer_all(rdma::CompletionStatus::kOk);
  }

  bool begin() { return batch.begin(target, EvictionBatch::kLarge, Nanoseconds(0)); }
  // All that is resident leaves, although there would be room.
  void evict(uffd::PageRun run) {
    target.cold.push(run);
    EXPECT_TRUE(begin());
    EXPECT_TRUE(batch.finish());
    (void)log.take();
  }
  bool has_copy(uint64_t page) const { return copies.has(PageIndex{page}); }
  // The nodes have other bytes from now on: a READ would show.
  void spoil_nodes(uint64_t page) {
    for (const auto& each : nodes) each->set_word(page, kSpoilt);
  }
  // Bits of the copy have changed.
  void damage_copy(uint64_t page, std::span<const std::byte> copy) {
    EXPECT_TRUE(copies.insert(PageIndex{page}, copy, 28, 0));
  }
  // A page that is not this one.
  void replace_copy(uint64_t page) {
    std::array<std::byte, CompressedPages::kMaxBytes> block;
    PageCodec codec;
    const auto bytes = codec.compress(page_of(kSpoilt), block);
    ASSERT_TRUE(bytes);
    damage_copy(page, std::span(block).first(*bytes));
  }
  [[nodiscard]] bool fetches_all() {
    return becomes_true([&] {
      (void)fetcher.progress();
      (void)prefetcher.progress();
      return fetcher.outstanding() + prefetcher.outstanding() == 0;
    });
  }
  bool agrees() const {
    uint64_t resident = copies.pool_pages();
    for (uint64_t block = 0; block < table.blocks(); ++block)
      resident += table.resident_in_block(block);
    EXPECT_EQ(budget.used(), resident);
    const Status pool = copies.check_invariants();
    EXPECT_TRUE(pool) << pool.error().message();
    return budget.used() == resident && pool.has_value();
  }

  static constexpr uint64_t kSpoilt = 4711;
  std::unique_ptr<LinkPort> evict_port = make_port(EvictionBatch::kBufferBytes);
  EvictionBatch batch{engine, *evict_port};
  std::unique_ptr<LinkPort> prefetch_port = make_port(Prefetcher::kBufferBytes);
  Prefetcher prefetcher{*prefetch_port, 0};
};

// ---- eviction ----

TEST(CompressedTier, ADirtyPageThatLeavesHasACopyAndIsOnItsNodes) {
  TierRig rig;
  rig.make_dirty(pages_of(10, 3));
  rig.evict(pages_of(10, 3));
  for (uint64_t page = 10; page < 13; ++page) {
    EXPECT_EQ(rig.state(page), PageState::kRemote);
    EXPECT_TRUE(has_flag(rig, page));
    EXPECT_TRUE(rig.has_copy(page));
    EXPECT_EQ(rig.node().word(page), TargetRig::word_of(page));
  }
  EXPECT_EQ(rig.evicted().copies_stored.get(), 3U);
  EXPECT_EQ(rig.copies.pool_pages(), 1U);
  EXPECT_EQ(rig.budget.used(), 1U) << "the pool counts";
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedTier, ACleanPageIsReadForItsCopy) {
  TierRig rig;
  rig.make_clean(pages_of(10, 2));
  rig.target.cold.push(pages_of(10, 2));
  ASSERT_TRUE(rig.begin());
  EXPECT_EQ(rig.log.take(), Lines{"read 10+2"});
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.evicted().pages_clean.get(), 2U);
  EXPECT_TRUE(rig.has_copy(10));
  EXPECT_TRUE(has_flag(rig, 11));
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedTier, CleanPagesThatCannotBeReadLeaveWithoutACopy) {
  TierRig rig;
  rig.make_clean(pages_of(10));
  rig.space.close_page(10);
  rig.evict(pages_of(10));
  EXPECT_EQ(rig.state(10), PageState::kRemote);
  EXPECT_FALSE(has_flag(rig, 10));
  EXPECT_FALSE(rig.has_copy(10));
}

TEST(CompressedTier, APageOfZerosNeedsNoCopy) {
  TierRig rig;
  rig.make_zero(pages_of(10));
  rig.evict(pages_of(10));
  EXPECT_EQ(rig.state(10), PageState::kEmpty);
  EXPECT_FALSE(rig.has_copy(10));
}

TEST(CompressedTier, APageThatIsWrittenDuringItsEvictionKeepsNoCopy) {
  TierRig rig;
  rig.node().answer_all(std::nullopt);
  rig.make_dirty(pages_of(10, 2));
  rig.target.cold.push(pages_of(10, 2));
  ASSERT_TRUE(rig.begin());
  EXPECT_TRUE(rig.has_copy(10));
  EXPECT_FALSE(has_flag(rig, 10)) << "nobody may use it yet";
  rig.move(10, PageState::kUnprotecting);
  rig.move(10, PageState::kDirty);
  rig.node().answer();
  ASSERT_TRUE(rig.batch.finish());
  EXPECT_EQ(rig.state(10), PageState::kDirty);
  EXPECT_FALSE(rig.has_copy(10));
  EXPECT_TRUE(has_flag(rig, 11));
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedTier, APageThatTheProgramDoesNotDropKeepsNoCopy) {
  TierRig rig;
  rig.make_dirty(pages_of(10));
  rig.space.refuse_drop_of(10, EINVAL);
  rig.evict(pages_of(10));
  EXPECT_EQ(rig.state(10), PageState::kClean);
  EXPECT_FALSE(has_flag(rig, 10));
  EXPECT_FALSE(rig.has_copy(10));
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedTier, ThePoolHasItsShareOfTheBudgetAndFollowsIt) {
  TierRig rig;
  ASSERT_EQ(rig.target.most_pool_pages(), 28U);  // 30 % of the low-water mark
  for (uint64_t first = 0; first < 2000; first += 50) {
    if (!rig.lease_slab_of(first + 49)) FAIL();
    rig.make_dirty(pages_of(first, 50));
    rig.evict(pages_of(first, 50));
  }
  EXPECT_EQ(rig.copies.pool_pages(), 28U);
  EXPECT_GT(rig.copies.dropped(), 0U);
  EXPECT_TRUE(rig.agrees());
  EXPECT_TRUE(rig.pins.pin(pages_of(0, 44)));
  EXPECT_EQ(rig.target.most_pool_pages(), 15U);
  rig.budget.resize(54);
  EXPECT_FALSE(rig.begin());
  EXPECT_EQ(rig.target.most_pool_pages(), 1U);
  EXPECT_EQ(rig.copies.pool_pages(), 1U);
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedTier, WhereNoPageCanLeaveCopiesMakeRoom) {
  TierRig rig;
  for (uint64_t first = 0; first < 500; first += 50) {
    rig.make_dirty(pages_of(first, 50));
    rig.evict(pages_of(first, 50));
  }
  const uint64_t pool = rig.copies.pool_pages();
  ASSERT_GT(pool, 6U);
  rig.client.set_slab_limit(1);
  rig.make_dirty(pages_of(TargetRig::kSlabPages, static_cast<uint32_t>(100 - pool)));
  ASSERT_FALSE(rig.budget.try_take());
  rig.target.eviction.progress.failed(SteadyClock::read());
  EXPECT_FALSE(rig.begin());
  EXPECT_EQ(rig.copies.pool_pages(), pool - 6);
  EXPECT_FALSE(rig.budget.above_low());
  EXPECT_TRUE(rig.agrees());
  const Instant begun = SteadyClock::read();
  EXPECT_FALSE(rig.target.eviction.progress.hopeless(begun, begun + std::chrono::hours(3),
                                                     std::chrono::hours(1)))
      << "it was no failure, and there is hope again";
}

TEST(CompressedTier, WhetherCopiesAreWorthItIsJudgedByTheLastFaults) {
  TierRig rig({.budget_pages = 100, .keeps_copies = true, .adaptive_copies = true});
  const auto review_after_reads_of = [&rig](uint64_t wire_ns, int reads) {
    for (int i = 0; i < reads; ++i) rig.target.times.wire_ns.record(wire_ns);
    rig.target.eviction.counts.pages_clean.add(CompressionPolicy::kFewest);
    (void)rig.begin();
    return rig.target.eviction.compression.part_of(28);
  };
  EXPECT_EQ(review_after_reads_of(10'000, 5000), 28U);
  EXPECT_EQ(review_after_reads_of(500, 20), 0U);
}

TEST(CompressedTier, ALossIsSeenInTheFaultsThatItHasCost) {
  TierRig rig({.budget_pages = 100, .keeps_copies = true, .adaptive_copies = true});
  // Each is used so early that its page would have been here: 15 us each, by the usual times.
  rig.target.counts_of(0).faults_compressed.add(10'000);
  rig.target.counts_of(0).early_copies.add(10'000);
  rig.target.eviction.counts.pages_clean.add(CompressionPolicy::kFewest);
  (void)rig.begin();
  EXPECT_EQ(rig.target.eviction.compression.part_of(28), 0U);
}

TEST(CompressedTier, WithoutCopiesAnEvictionIsAsBefore) {
  BatchRig rig;
  rig.make_clean(pages_of(10, 2));
  rig.make_dirty(pages_of(12));
  ASSERT_TRUE(rig.begin());
  EXPECT_EQ(rig.log.take(), (Lines{"protect 12", "read 12", "WRITE n0 12"}));
}

// ---- faults ----

TEST(CompressedTier, AFaultIsAnsweredFromTheCopyWithoutARead) {
  TierRig rig;
  rig.make_dirty(pages_of(10));
  rig.evict(pages_of(10));
  rig.spoil_nodes(10);
  rig.fault(10);
  rig.fetcher.post_queued();
  EXPECT_EQ(rig.log.of("READ"), Lines{});
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.log.take(), Lines{"install 10 protected"});
  EXPECT_EQ(rig.state(10), PageState::kClean);
  EXPECT_EQ(rig.space.word(10), TargetRig::word_of(10));
  EXPECT_FALSE(rig.waits(10));
  EXPECT_FALSE(rig.has_copy(10)) << "it is taken";
  EXPECT_EQ(rig.counts().faults_compressed.get(), 1U);
  EXPECT_EQ(rig.counts().faults_remote.get(), 0U);
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedTier, ReadsArePostedBeforeCopiesAreTaken) {
  TierRig rig;
  rig.make_dirty(pages_of(10));
  rig.evict(pages_of(10));
  rig.make_remote(pages_of(20));
  rig.fault(10);
  rig.fault(20);
  rig.fetcher.post_queued();
  EXPECT_EQ(rig.log.take(), Lines{"READ n0 20"});
  EXPECT_TRUE(becomes_true([&] {
    (void)rig.fetcher.progress();
    return rig.fetcher.outstanding() == 0;
  }));
  EXPECT_EQ(rig.log.of("install").size(), 2U);
}

TEST(CompressedTier, ACopyThatHasGoneMakesTheFaultARead) {
  TierRig rig;
  rig.make_dirty(pages_of(10, 2));
  rig.evict(pages_of(10, 2));
  rig.copies.forget(PageIndex{10});
  rig.fault(10);
  rig.fault(11);
  rig.copies.forget(PageIndex{11});  // after the fetch began
  rig.fetcher.post_queued();
  EXPECT_EQ(rig.log.take(), Lines{"READ n0 10"});
  EXPECT_TRUE(becomes_true([&] {
    (void)rig.fetcher.progress();
    return rig.fetcher.outstanding() == 0;
  }));
  EXPECT_EQ(rig.log.of("READ"), Lines{"READ n0 11"});
  EXPECT_EQ(rig.space.word(10), TargetRig::word_of(10));
  EXPECT_EQ(rig.space.word(11), TargetRig::word_of(11));
  EXPECT_EQ(rig.counts().faults_remote.get(), 2U);
}

TEST(CompressedTier, ACopyThatWasDamagedMakesTheFaultARead) {
  TierRig rig({.budget_pages = 100, .keeps_copies = true});
  rig.make_dirty(pages_of(10, 2));
  rig.evict(pages_of(10, 2));
  rig.replace_copy(10);
  rig.damage_copy(11, std::array<std::byte, 100>{});
  rig.fault(10);
  rig.fault(11);
  ASSERT_TRUE(rig.fetches_all());
  EXPECT_EQ(rig.log.of("READ"), (Lines{"READ n0 10", "READ n0 11"}));
  EXPECT_EQ(rig.space.word(10), TargetRig::word_of(10));
  EXPECT_EQ(rig.space.word(11), TargetRig::word_of(11));
  EXPECT_EQ(rig.counts().faults_compressed.get(), 0U);
  EXPECT_FALSE(rig.has_copy(10));
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedTier, APageWhoseNodesAreAwayComesFromItsCopy) {
  TierRig rig;
  rig.make_dirty(pages_of(10));
  rig.evict(pages_of(10));
  rig.node().break_channels();
  rig.fault(10);
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.state(10), PageState::kClean);
}

TEST(CompressedTier, ARefusedInstallationIsTriedAgain) {
  TierRig rig;
  rig.make_dirty(pages_of(10));
  rig.evict(pages_of(10));
  rig.fault(10);
  rig.space.unmap(pages_of(500));
  (void)rig.fetcher.progress();
  EXPECT_EQ(rig.state(10), PageState::kFetching);
  rig.space.read_all();
  (void)rig.fetcher.progress();
  EXPECT_EQ(rig.state(10), PageState::kClean);
  EXPECT_EQ(rig.space.word(10), TargetRig::word_of(10));
}

TEST(CompressedTier, AnOldCopyIsNotUsed) {
  TierRig rig;
  rig.make_dirty(pages_of(10));
  rig.evict(pages_of(10));
  // As where a copy is left over: the page's word does not say that it is right.
  const PageWord word = rig.table.load(PageIndex{10});
  rig.move(10, PageState::kFetching, PageWord::kFromRemote);
  rig.move(10, PageState::kRemote);
  ASSERT_TRUE(rig.has_copy(10));
  ASSERT_NE(word, rig.table.load(PageIndex{10}));
  rig.spoil_nodes(10);
  rig.fault(10);
  EXPECT_TRUE(becomes_true([&] {
    rig.fetcher.post_queued();
    (void)rig.fetcher.progress();
    return rig.fetcher.outstanding() == 0;
  }));
  EXPECT_EQ(rig.space.word(10), TierRig::kSpoilt);
}

TEST(CompressedTier, APageThatComesAndGoesHasItsNewestBytes) {
  TierRig rig;
  rig.make_dirty(pages_of(10));
  for (uint64_t round = 0; round < 20; ++round) {
    rig.evict(pages_of(10));
    rig.fault(10, FaultKind::kMissingWrite);
    (void)rig.fetcher.progress();
    EXPECT_EQ(rig.space.word(10), FetcherRig::kWritten);
    rig.space.put(10, 1000 + round, uffd::Protection::kWritable);
    EXPECT_TRUE(rig.agrees());
  }
  rig.evict(pages_of(10));
  rig.fault(10);
  (void)rig.fetcher.progress();
  EXPECT_EQ(rig.space.word(10), 1019U);
  EXPECT_EQ(rig.counts().faults_compressed.get(), 21U);
}

TEST(CompressedTier, ADiscardedPageLosesItsCopyAndReadsAsZeros) {
  TierRig rig;
  rig.make_dirty(pages_of(10));
  rig.evict(pages_of(10));
  EXPECT_TRUE(discard_pages(rig.target, pages_of(10), BusyPages::kWait));
  EXPECT_EQ(rig.table.load(PageIndex{10}), PageWord(PageState::kEmpty));
  EXPECT_FALSE(rig.has_copy(10));
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedTier, ATargetThatIsRemovedLeavesItsFaults) {
  TierRig rig;
  rig.make_dirty(pages_of(10));
  rig.evict(pages_of(10));
  rig.fault(10);
  rig.target.closing = true;
  rig.fetcher.leave_closing();
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
  EXPECT_FALSE(rig.target.is_held());
}

// ---- prefetch ----

TEST(CompressedTier, APrefetchTakesCopiesAndReadsTheRest) {
  TierRig rig;
  rig.make_dirty(pages_of(10, 4));
  rig.evict(pages_of(10, 4));
  rig.make_remote(pages_of(14, 4));
  for (uint64_t page = 10; page < 14; ++page) rig.spoil_nodes(page);
  rig.prefetcher.start(rig.target,
                       {.first = PageIndex{10}, .stride = 1, .pages = 8, .gap = UINT32_MAX});
  EXPECT_EQ(rig.log.take(), Lines{"READ n0 14+4"});
  EXPECT_TRUE(becomes_true([&] {
    (void)rig.prefetcher.progress();
    return rig.prefetcher.outstanding() == 0;
  }));
  EXPECT_EQ(rig.log.count("install 10+4 protected"), 1U);
  for (uint64_t page = 10; page < 18; ++page) {
    EXPECT_EQ(rig.state(page), PageState::kClean);
    EXPECT_EQ(rig.space.word(page), TargetRig::word_of(page));
  }
  EXPECT_EQ(rig.counts().prefetch_pages.get(), 8U);
  EXPECT_EQ(rig.counts().prefetch_compressed_pages.get(), 4U);
  EXPECT_FALSE(rig.target.is_held());
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedTier, AfterACopyThatHasGoneThePagesOfAPrefetchAreRemoteAgain) {
  TierRig rig;
  rig.make_dirty(pages_of(10, 4));
  rig.evict(pages_of(10, 4));
  rig.prefetcher.start(rig.target,
                       {.first = PageIndex{10}, .stride = 1, .pages = 4, .gap = UINT32_MAX});
  rig.copies.forget(PageIndex{12});
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.prefetcher.outstanding(), 0U);
  EXPECT_EQ(rig.state(11), PageState::kClean);
  EXPECT_EQ(rig.state(12), PageState::kRemote);
  EXPECT_EQ(rig.state(13), PageState::kRemote);
  EXPECT_TRUE(has_flag(rig, 13)) << "its copy is still right";
  EXPECT_TRUE(rig.has_copy(13));
  EXPECT_TRUE(rig.agrees());
}

TEST(CompressedTier, FromACopyThatWasDamagedOnThePagesOfAPrefetchAreRemoteAgain) {
  TierRig rig({.budget_pages = 100, .keeps_copies = true});
  rig.make_dirty(pages_of(10, 4));
  rig.evict(pages_of(10, 4));
  rig.replace_copy(12);
  rig.prefetcher.start(rig.target,
                       {.first = PageIndex{10}, .stride = 1, .pages = 4, .gap = UINT32_MAX});
  ASSERT_TRUE(rig.fetches_all());
  EXPECT_EQ(rig.state(11), PageState::kClean);
  EXPECT_EQ(rig.state(12), PageState::kRemote);
  EXPECT_EQ(rig.state(13), PageState::kRemote);
  EXPECT_TRUE(rig.agrees());
  rig.fault(12);
  ASSERT_TRUE(rig.fetches_all());
  EXPECT_EQ(rig.space.word(12), TargetRig::word_of(12));
}

// ---- fork ----

TEST(CompressedTier, AChildOfAForkReadsFromTheNodes) {
  TierRig rig;
  rig.make_dirty(pages_of(10));
  rig.evict(pages_of(10));
  ASSERT_TRUE(has_flag(rig, 10));
  std::unique_ptr<Inheritance> child;
  const Doorbell bell = std::move(*Doorbell::create());
  ForkInProgress fork(rig.target, bell, [&](Inheritance inheritance) {
    child = std::make_unique<Inheritance>(std::move(inheritance));
  });
  ASSERT_TRUE(fork.open());
  fork.arrived(std::make_unique<FakeAddressSpace>(2048, rig.log));
  fork.close(/*forked=*/true);
  ASSERT_NE(child, nullptr);
  const PageWord word = child->image->table().load(PageIndex{10});
  EXPECT_EQ(word.state(), PageState::kRemote);
  EXPECT_EQ(compressed_flag(word), 0U);
  EXPECT_TRUE(has_flag(rig, 10)) << "the parent still has its copy";
}

}  // namespace
}  // namespace farpage::pager
