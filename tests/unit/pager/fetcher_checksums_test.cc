// READs that bring other bytes than were written.
#include <gtest/gtest.h>

#include "fetcher_rig.h"
#include "pager/fault/prefetcher.h"

namespace farpage::pager {
namespace {

using rdma::CompletionStatus;

constexpr uint64_t kChangedWord = 9;  // not what any page has

// Also counts what is reported.
template <typename Rig>
class Reporting : public Rig {
 public:
  explicit Reporting(const TargetRigOptions& options = {}) : Rig(options) {
    this->engine.on_wrong_page = [this](const WrongPage& wrong) { reported.push_back(wrong); };
  }
  std::vector<WrongPage> reported;
};

TEST(FetcherChecksums, RightBytesAreInstalled) {
  Reporting<FetcherRig> rig;
  rig.begin_fetch(5);
  rig.keep_checksums(pages_of(5));
  rig.answer();
  EXPECT_EQ(rig.state(5), PageState::kClean);
  EXPECT_TRUE(rig.reported.empty());
}

TEST(FetcherChecksums, WrongBytesAreAnsweredByTheOtherReplica) {
  Reporting<FetcherRig> rig({.nodes = 2});
  rig.begin_fetch(5);
  rig.keep_checksums(pages_of(5));
  rig.node(1).set_word(5, kChangedWord);  // which is read first
  rig.node(1).answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.log.count("install"), 0U);
  ASSERT_EQ(rig.node(0).waiting(), 1U);
  rig.node(0).answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.space.word(5), TargetRig::word_of(5));
  EXPECT_EQ(rig.counts().pages_wrong.get(), 1U);
  EXPECT_EQ(rig.counts().retries.get(), 1U);
  EXPECT_EQ(rig.reported, (std::vector<WrongPage>{{&rig.target.leases_of(PageWord()), PageIndex{5},
                                                   &rig.replica(5, 1)}}));
  EXPECT_TRUE(rig.replica(5, 1).is_read()) << "it may have all other pages";
}

TEST(FetcherChecksums, WithoutAnotherReplicaWrongBytesAreReadOnceMoreThenLost) {
  Reporting<FetcherRig> rig;
  rig.begin_fetch(5);
  rig.keep_checksums(pages_of(5));
  rig.node().set_word(5, kChangedWord);
  rig.answer();
  EXPECT_EQ(rig.state(5), PageState::kFetching);
  ASSERT_TRUE(rig.posts_again(0));
  rig.answer();
  ASSERT_TRUE(becomes_true([&] {
    (void)rig.fetcher.progress();
    return rig.state(5) == PageState::kLost;
  }));
  EXPECT_TRUE(rig.is_killed(5));
  EXPECT_EQ(rig.log.count("install"), 0U);
  EXPECT_EQ(rig.log.count("READ"), 2U);
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_EQ(rig.fetcher.outstanding(), 0U);
}

TEST(FetcherChecksums, BytesThatHaveChangedOnTheirWayAreRightTheSecondTime) {
  Reporting<FetcherRig> rig;
  rig.begin_fetch(5);
  rig.keep_checksums(pages_of(5));
  rig.node().set_word(5, kChangedWord);
  rig.answer();
  rig.node().set_word(5, TargetRig::word_of(5));
  ASSERT_TRUE(rig.posts_again(0));
  rig.answer();
  EXPECT_EQ(rig.space.word(5), TargetRig::word_of(5));
}

// It may have the right bytes.
TEST(FetcherChecksums, AReplicaWithoutAChannelIsWaitedFor) {
  Reporting<FetcherRig> rig({.nodes = 2});
  rig.make_remote(pages_of(5));
  rig.keep_checksums(pages_of(5));
  rig.node(0).break_channels();
  rig.node(1).set_word(5, kChangedWord);
  rig.fault(5);
  for (int tries = 0; tries < 2; ++tries) {
    ASSERT_TRUE(rig.posts_again(1));
    rig.node(1).answer();
    EXPECT_TRUE(rig.fetcher.progress());
  }
  EXPECT_EQ(rig.state(5), PageState::kFetching);
  rig.connect(*rig.port, 0);
  ASSERT_TRUE(rig.posts_again(0));
  rig.node(0).answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.space.word(5), TargetRig::word_of(5));
}

TEST(FetcherChecksums, WhereTheyAreOffNothingIsChecked) {
  Reporting<FetcherRig> rig({.checksums = false});
  rig.begin_fetch(5);
  rig.keep_checksums(pages_of(5));
  rig.node().set_word(5, kChangedWord);
  rig.answer();
  EXPECT_EQ(rig.space.word(5), kChangedWord);
}

class CheckedPrefetcherRig : public TargetRig {
 public:
  explicit CheckedPrefetcherRig(const TargetRigOptions& options = {}) : TargetRig(options) {}
  std::unique_ptr<LinkPort> port = make_port(Prefetcher::kBufferBytes);
  Prefetcher prefetcher{*port, 0};
};

TEST(FetcherChecksums, ARunWithAWrongPageIsNotPlacedAndItsWaitersFaultAgain) {
  Reporting<CheckedPrefetcherRig> rig;
  rig.make_remote(pages_of(0, 16));
  rig.keep_checksums(pages_of(0, 16));
  rig.node().set_word(7, kChangedWord);
  rig.prefetcher.start(rig.target,
                       {.first = PageIndex{0}, .stride = 1, .pages = 16, .gap = UINT32_MAX});
  EXPECT_FALSE(rig.space.touch_read(3));
  rig.space.read_all();
  EXPECT_TRUE(rig.table.mark_awaited(PageIndex{3}, rig.table.load(PageIndex{3})));
  rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  EXPECT_EQ(rig.log.count("install"), 0U);
  EXPECT_EQ(rig.state(3), PageState::kRemote);
  EXPECT_EQ(rig.log.count("wake 3"), 2U) << "as a page that failed, and as one that was awaited";
  EXPECT_EQ(rig.reported, (std::vector<WrongPage>{{&rig.target.leases_of(PageWord()), PageIndex{7},
                                                   &rig.replica(7, 0)}}));
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_EQ(rig.prefetcher.outstanding(), 0U);
}

}  // namespace
}  // namespace farpage::pager
