// Pages that others have stored: in other places, and with checksums.
#include "pager/links/stored_pages.h"

#include <gtest/gtest.h>

#include <cstring>

#include "fetcher_rig.h"
#include "pager/fault/prefetcher.h"

namespace farpage::pager {
namespace {

using rdma::CompletionStatus;
using Lines = std::vector<std::string>;

// Pages from 8 on lie ten places behind their numbers, the others at their numbers.
class Stored final : public StoredPages {
 public:
  uint64_t slabs() const override { return 4; }
  uint64_t slab_bytes() const override { return TargetRig::kSlabBytes; }
  const std::vector<coordinator::Lease>& leases() const override { return leases_; }
  std::optional<PageIndex> place_of(PageIndex page) const override {
    return PageIndex{page.value < 8 ? page.value : page.value + 10};
  }
  // Those that do not begin with `wrong`.
  bool is_right(PageIndex /*page*/, std::span<const std::byte> bytes) const override {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    return word != wrong;
  }

  uint64_t wrong = 0;

 private:
  std::vector<coordinator::Lease> leases_;
};

class StoredRig : public FetcherRig {
 public:
  explicit StoredRig(uint32_t count = 1) : FetcherRig({.nodes = count}) {
    make_remote(pages_of(0, 100));
    image->fork_group()->leases_of(BackingId{0}).use(stored);
  }

  Stored stored;
  std::unique_ptr<LinkPort> prefetch_port = make_port(Prefetcher::kBufferBytes);
  Prefetcher prefetcher{*prefetch_port, 0};
};

TEST(StoredPages, APageIsReadWhereItLies) {
  StoredRig rig;
  rig.fault(7);
  rig.fault(9);
  rig.fetcher.post_queued();
  EXPECT_EQ(rig.log.take(), (Lines{"READ n0 7", "READ n0 19"}));
  rig.answer();
  rig.answer();
  EXPECT_EQ(rig.state(9), PageState::kClean);
  EXPECT_EQ(rig.space.word(9), TargetRig::word_of(19));
}

TEST(StoredPages, APageWithOtherBytesComesFromAnotherReplica) {
  StoredRig rig(2);
  rig.stored.wrong = 77;
  rig.node(1).set_word(19, 77);
  rig.fault(9);
  rig.fetcher.post_queued();
  ASSERT_EQ(rig.node(1).waiting(), 1U);
  rig.node(1).answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.state(9), PageState::kFetching);
  ASSERT_TRUE(rig.posts_again(0));
  rig.node(0).answer();
  EXPECT_TRUE(rig.fetcher.progress());
  EXPECT_EQ(rig.state(9), PageState::kClean);
  EXPECT_EQ(rig.space.word(9), TargetRig::word_of(19));
  EXPECT_EQ(rig.log.count("install"), 1U);
}

TEST(StoredPages, AfterTheDeadlineAPageWithOtherBytesIsLost) {
  StoredRig rig;
  rig.stored.wrong = 77;
  rig.node().set_word(19, 77);
  rig.fault(9, uffd::FaultKind::kMissingRead, rig.too_long_ago());
  rig.fetcher.post_queued();
  rig.answer();
  EXPECT_EQ(rig.state(9), PageState::kLost);
  EXPECT_TRUE(rig.is_killed(9));
  EXPECT_EQ(rig.log.count("install"), 0U);
}

TEST(StoredPages, ARunEndsWherePlacesDoNotFollowEachOther) {
  StoredRig rig;
  rig.prefetcher.start(rig.target,
                       {.first = PageIndex{4}, .stride = 1, .pages = 8, .gap = UINT32_MAX});
  EXPECT_EQ(rig.log.take(), (Lines{"READ n0 4+4", "READ n0 18+4"}));
}

TEST(StoredPages, RunWithOtherBytesIsNotPlaced) {
  StoredRig rig;
  rig.stored.wrong = 77;
  rig.node().set_word(22, 77);
  rig.prefetcher.start(rig.target,
                       {.first = PageIndex{10}, .stride = 1, .pages = 5, .gap = UINT32_MAX});
  rig.node().answer();
  EXPECT_TRUE(rig.prefetcher.progress());
  for (const uint64_t page : {10, 11, 12, 13, 14})
    EXPECT_EQ(rig.state(page), PageState::kRemote) << page;
  EXPECT_EQ(rig.budget.used(), 0U);
  EXPECT_EQ(rig.prefetcher.outstanding(), 0U);
  EXPECT_FALSE(rig.target.is_held());
}

std::vector<coordinator::Lease> leases_of_two_slabs() {
  std::vector<coordinator::Lease> leases(3);
  leases[0] = {.slab = SlabIndex{0}, .node = NodeId{"a"}, .address = RemoteAddress{1 << 20}};
  leases[1] = {.slab = SlabIndex{1}, .node = NodeId{"a"}, .address = RemoteAddress{2 << 20}};
  leases[2] = {.slab = SlabIndex{1}, .node = NodeId{"b"}, .address = RemoteAddress{3 << 20}};
  return leases;
}

TEST(StoredPages, LeasesOfNodesThatHaveLeftAreLost) {
  auto leases = leases_of_two_slabs();
  auto map = std::move(*LeaseMap::create(1024, TargetRig::kSlabBytes));
  const auto only = [](const char* name) {
    return [name](const NodeId& id) -> Result<std::optional<NodeIndex>> {
      if (id.value == name) return std::optional(NodeIndex{3});
      return std::optional<NodeIndex>();
    };
  };
  EXPECT_EQ(publish_leases(leases, *map, only("b")).error().code, ErrorCode::kUnavailable);
  ASSERT_TRUE(publish_leases(leases, *map, only("a")).has_value());
  EXPECT_EQ(map->leased_slabs(), 2U);
  EXPECT_EQ(map->find(SlabIndex{1})->replica_count, 1U);
  leases[0].slab = SlabIndex{2};
  EXPECT_EQ(publish_leases(leases, *map, only("a")).error().code, ErrorCode::kInvalid);
}

// Each node has the number that its name is.
Result<std::optional<NodeIndex>> index_by_name(const NodeId& id) {
  return std::optional(NodeIndex{static_cast<uint16_t>(std::stoi(id.value))});
}

coordinator::Lease lease_on(const char* node, uint32_t slab, uint32_t generation) {
  return {.slab = SlabIndex{slab}, .node = NodeId{node}, .generation = Generation{generation}};
}

TEST(StoredPages, NewReplicasAreAddedAndThoseThatTheyHaveReplacedEnd) {
  auto map = std::move(*LeaseMap::create(1024, TargetRig::kSlabBytes));
  std::vector<coordinator::Lease> leases{lease_on("1", 0, 10), lease_on("2", 0, 20),
                                         lease_on("1", 1, 11)};
  ASSERT_TRUE(publish_leases(leases, *map, index_by_name).has_value());
  const SlabLease* const before = map->find(SlabIndex{0});
  // Slab 0 has moved from node 1 to 3, and gets one more; slab 1 has moved, and was refused.
  leases = {lease_on("3", 0, 30), lease_on("2", 0, 20), lease_on("4", 0, 40), lease_on("3", 1, 31)};
  leases[2].filling = true;
  EXPECT_TRUE(map->find(SlabIndex{1})->replicas[0]->end(ReplicaState::kLost));
  ASSERT_TRUE(refresh_leases(leases, *map, index_by_name).has_value());
  const SlabLease& moved = *map->find(SlabIndex{0});
  ASSERT_NE(moved.find(NodeIndex{3}, Generation{30}), nullptr);
  EXPECT_TRUE(moved.find(NodeIndex{3}, Generation{30})->is_read());
  EXPECT_EQ(moved.find(NodeIndex{4}, Generation{40}), nullptr) << "it is filling";
  EXPECT_EQ(before->replicas[0]->state, ReplicaState::kWithdrawn);
  EXPECT_EQ(moved.live(), 2U);
  ASSERT_NE(map->find(SlabIndex{1})->find(NodeIndex{3}, Generation{31}), nullptr);
  EXPECT_EQ(map->find(SlabIndex{1})->live(), 1U);

  const SlabLease* const after = map->find(SlabIndex{0});
  ASSERT_TRUE(refresh_leases(leases, *map, index_by_name).has_value());
  EXPECT_EQ(map->find(SlabIndex{0}), after) << "nothing has changed";
}

TEST(StoredPages, ReplicaWithoutASuccessorStays) {
  auto map = std::move(*LeaseMap::create(512, TargetRig::kSlabBytes));
  ASSERT_TRUE(publish_leases({lease_on("1", 0, 10)}, *map, index_by_name).has_value());
  std::vector<coordinator::Lease> leases{lease_on("1", 0, 10)};
  leases[0].lost = true;
  ASSERT_TRUE(refresh_leases(leases, *map, index_by_name).has_value());
  EXPECT_EQ(map->find(SlabIndex{0})->live(), 1U) << "whoever reads from it finds out";
}

}  // namespace
}  // namespace farpage::pager
