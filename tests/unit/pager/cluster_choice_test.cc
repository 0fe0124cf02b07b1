#include "pager/fault/cluster_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace farpage::pager {
namespace {

constexpr uint64_t kTablePages = 1 << 16;  // eight pieces
constexpr uint64_t kPiecePages = 1 << 13;
constexpr uint64_t kOneEpoch = uint64_t{1} << 32;
constexpr uint8_t kLeftIn = 7;  // the epoch in which pages have left, unless a test says more

// A page table all of whose pages are away. Faults bring pages in, and so do clusters.
struct ChoiceRig {
  ChoiceRig() {
    for (uint64_t page = 0; page < kTablePages; ++page) put_away(page);
  }

  void put_away(uint64_t page, uint8_t epoch = kLeftIn, uint32_t flags = 0) {
    place(page, PageWord(PageState::kRemote, flags).with_epoch(epoch));
  }
  void place(uint64_t page, PageWord word) {
    const PageIndex index{page};
    if (table.load(index).state() != PageState::kEmpty)
      table.transition_owned(index, table.load(index), PageWord());
    if (word.state() != PageState::kEmpty) table.place(index, word);
  }
  bool is_away(uint64_t page) const {
    return table.load(PageIndex{page}).state() == PageState::kRemote;
  }
  // Returns what came with the page.
  std::vector<uint64_t> fault(uint64_t page) {
    const PageWord word = table.load(PageIndex{page});
    place(page, PageWord(PageState::kClean));
    const Cluster cluster = choice.choose(table, PageIndex{page}, word, clock);
    std::vector<uint64_t> came;
    for (uint64_t each = cluster.first.value; each < cluster.first.value + Cluster::kPages; ++each)
      if (cluster.has(each)) came.push_back(each);
    for (const uint64_t each : came) place(each, PageWord(PageState::kClean));
    return came;
  }
  // Touches the pages of the clusters [first, last) that are away, of each cluster the first
  // `touched` ones. Returns the pages that came with others.
  uint64_t touch(uint64_t first, uint64_t last, uint64_t touched) {
    uint64_t came = 0;
    for (uint64_t cluster = first; cluster < last; ++cluster)
      for (uint64_t i = 0; i < touched; ++i)
        if (is_away(cluster * Cluster::kPages + i))
          came += fault(cluster * Cluster::kPages + i).size();
    return came;
  }
  void put_all_away() {
    for (uint64_t page = 0; page < kTablePages; ++page)
      if (!is_away(page)) put_away(page);
  }

  PageTable table = std::move(*PageTable::create(kTablePages));
  ClusterChoice choice;
  uint64_t clock = 0;
};

constexpr uint64_t kClustersOfPiece = kPiecePages / Cluster::kPages;  // of a piece

TEST(ClusterChoice, NothingComesBeforeTheControlGroupHasShownThatItIsUsed) {
  ChoiceRig rig;
  EXPECT_EQ(rig.touch(0, 8, 1), 0U);
}

TEST(ClusterChoice, NeighboursThatAreUsedComeTogether) {
  ChoiceRig rig;
  rig.touch(0, kClustersOfPiece / 2, Cluster::kPages);
  const uint64_t watched = rig.choice.watched();
  EXPECT_GT(watched, kClustersOfPiece / 2 / 8 * (Cluster::kPages - 1) / 2);
  EXPECT_EQ(rig.choice.used(), watched);
  uint64_t whole = 0;
  for (uint64_t cluster = kClustersOfPiece / 2; cluster < kClustersOfPiece; ++cluster) {
    whole += rig.fault(cluster * Cluster::kPages + 3).size() == Cluster::kPages - 1 ? 1 : 0;
    rig.touch(cluster, cluster + 1, Cluster::kPages);
  }
  EXPECT_GT(whole, kClustersOfPiece / 2 * 3 / 4);
  EXPECT_LT(whole, kClustersOfPiece / 2) << "the control group is never fetched as a whole";
}

TEST(ClusterChoice, NeighboursThatAreNotUsedStayAway) {
  ChoiceRig rig;
  EXPECT_EQ(rig.touch(0, kTablePages / Cluster::kPages, 1), 0U);
  EXPECT_EQ(rig.choice.used(), 0U);
  EXPECT_GT(rig.choice.watched(), 0U);
}

TEST(ClusterChoice, EachPieceOfMemoryHasARecordOfItsOwn) {
  ChoiceRig rig;
  EXPECT_GT(rig.touch(0, kClustersOfPiece, Cluster::kPages), 0U);
  EXPECT_EQ(rig.touch(kClustersOfPiece, 2 * kClustersOfPiece, 1), 0U);
  EXPECT_EQ(rig.touch(2 * kClustersOfPiece, 2 * kClustersOfPiece + 8, 1), 0U);
}

TEST(ClusterChoice, ItEndsWhenNeighboursAreNoLongerUsed) {
  ChoiceRig rig;
  ASSERT_GT(rig.touch(0, kClustersOfPiece, Cluster::kPages), 0U);
  uint64_t came = 0;
  for (int round = 0; round < 20; ++round) {
    rig.put_all_away();
    rig.clock += 100 * kOneEpoch;
    came = rig.touch(0, kClustersOfPiece, 1);
  }
  EXPECT_EQ(came, 0U);
}

TEST(ClusterChoice, ANeighbourThatFaultsLateIsNotUsed) {
  ChoiceRig rig;
  for (uint64_t i = 0; i < Cluster::kPages; ++i) {
    for (uint64_t cluster = 0; cluster < kClustersOfPiece; ++cluster)
      rig.fault(cluster * Cluster::kPages + i);
    rig.clock += kOneEpoch + kOneEpoch / 256;
  }
  EXPECT_EQ(rig.choice.used(), 0U);
  EXPECT_GT(rig.choice.watched(), 0U);
}

TEST(ClusterChoice, OnlyRemotePagesThatLeftTogetherCome) {
  ChoiceRig rig;
  rig.touch(0, kClustersOfPiece / 2, Cluster::kPages);
  std::set<std::vector<uint64_t>> outcomes;
  for (uint64_t cluster = kClustersOfPiece / 2; cluster < kClustersOfPiece / 2 + 32; ++cluster) {
    const uint64_t first = cluster * Cluster::kPages;
    rig.put_away(first + 1, kLeftIn - 1);
    rig.put_away(first + 2, kLeftIn - 2);
    rig.put_away(first + 3, kLeftIn + 1);
    rig.put_away(first + 4, kLeftIn, PageWord::kMaybePresent);
    rig.place(first + 5, PageWord(PageState::kDirty));
    rig.place(first + 6, PageWord());
    std::vector<uint64_t> came = rig.fault(first);
    for (uint64_t& page : came) page -= first;
    outcomes.insert(came);
  }
  const std::vector<uint64_t> together{1, 3, 7};
  EXPECT_EQ(outcomes, (std::set<std::vector<uint64_t>>{{}, together}));
}

TEST(ClusterChoice, EpochsWrap) {
  ChoiceRig rig;
  rig.touch(0, kClustersOfPiece / 2, Cluster::kPages);
  uint64_t came = 0;
  for (uint64_t cluster = kClustersOfPiece / 2; cluster < kClustersOfPiece / 2 + 32; ++cluster) {
    const uint64_t first = cluster * Cluster::kPages;
    rig.put_away(first, 255);
    rig.put_away(first + 1, 0);
    came += rig.fault(first).size();
  }
  EXPECT_GT(came, 0U);
  EXPECT_LE(came, 32U);
}

TEST(ClusterChoice, AClusterAtTheEndOfTheTableIsShorter) {
  constexpr uint64_t kOdd = kPiecePages + 3;
  PageTable table = std::move(*PageTable::create(kOdd));
  const PageWord away = PageWord(PageState::kRemote).with_epoch(kLeftIn);
  for (uint64_t page = kOdd - 3; page < kOdd; ++page) table.place(PageIndex{page}, away);
  ClusterChoice choice;
  for (uint64_t page = kOdd - 3; page < kOdd; ++page)
    EXPECT_EQ(choice.choose(table, PageIndex{page}, away, 0).members, 0U);
}

// Of each cluster that is fetched some neighbours are not used.
TEST(ClusterChoice, UnusedPagesAreAtMostThreeTenthsOfThoseThatCameIn) {
  ChoiceRig rig;
  uint64_t faults = 0;
  uint64_t came = 0;
  uint64_t used = 0;
  for (int round = 0; round < 30; ++round) {
    for (uint64_t cluster = 0; cluster < kClustersOfPiece; ++cluster) {
      std::set<uint64_t> ahead;
      for (uint64_t i = 0; i < 6; ++i) {  // five of seven neighbours
        const uint64_t page = cluster * Cluster::kPages + i;
        if (ahead.contains(page)) ++used;
        if (!rig.is_away(page)) continue;
        ++faults;
        for (const uint64_t each : rig.fault(page)) {
          ahead.insert(each);
          ++came;
        }
      }
    }
    rig.put_all_away();
    rig.clock += 100 * kOneEpoch;
  }
  ASSERT_GT(came, 0U);
  EXPECT_LE(static_cast<double>(came - used), 0.31 * static_cast<double>(faults + used));
}

}  // namespace
}  // namespace farpage::pager
