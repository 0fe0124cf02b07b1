#include "pager/links/borrower.h"

#include <gtest/gtest.h>

#include <thread>

#include "one_node_for_each_slab.h"

#include "target_rig.h"

namespace farpage::pager {
namespace {

constexpr uint64_t kSlabBytes = OneNodeForEachSlab::kSlabBytes;
constexpr Seconds kPatience = OneNodeForEachSlab::kPatience;
constexpr uint32_t kOnAKnownNode = OneNodeForEachSlab::kOnAKnownNode;

class CountingOwner final : public RegionOwner {
 public:
  void node_wanted(NodeIndex node) override { wanted.insert(node); }
  void leased() override {}
  coordinator::Counters counters_of(const LeaseMap&) override { return {}; }
  void replica_lost() override { lost.fetch_add(1); }

  std::set<NodeIndex> wanted;  // written by the borrower's thread, or before its start
  std::atomic<int> lost{0};
};

struct BorrowerTest : testing::Test {
  static constexpr uint32_t kSlabs = kMaxNodes + 2;
  static PagerOptions options() {
    PagerOptions options;
    options.slab_bytes = kSlabBytes;
    return options;
  }
  std::unique_ptr<Borrower> borrower() {
    auto made = std::make_unique<Borrower>(options(), "name", *leases, nodes, client,
                                           [](const coordinator::RegionInfo&) { return Status(); });
    made->own(owner);
    return made;
  }
  PageIndex page_of(uint32_t slab) const {
    return PageIndex{uint64_t{slab} * leases->pages_per_slab()};
  }
  bool is_leased(uint32_t slab) const { return leases->find(page_of(slab)) != nullptr; }

  OneNodeForEachSlab client;
  CountingOwner owner;
  NodeDirectory nodes{no_succession()};
  std::unique_ptr<LeaseMap> leases =
      std::move(*LeaseMap::create(kSlabs * (kSlabBytes >> kPageShift), kSlabBytes));
  std::unique_ptr<BorrowerThread> thread = std::move(*BorrowerThread::create());
};

TEST_F(BorrowerTest, AsksForTheNodesOfItsLeasesAndForNoOther) {
  const auto one = borrower();
  ASSERT_TRUE(one->open_region(Seconds(0)).has_value());
  EXPECT_EQ(client.calls(), (std::vector<std::string>{"create", "heartbeat", "lease", "node n0"}));
  EXPECT_EQ(nodes.size(), 1U);
  EXPECT_EQ(owner.wanted.size(), 1U);
}

TEST_F(BorrowerTest, NodeWithoutATransportInCommonIsNamedAtOnce) {
  client.offer(rdma::TransportKind::kLoop);
  const auto one = borrower();
  const Status opened = one->open_region(Seconds(60));
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(opened.error().message().find("node n0 offers loop"), std::string::npos)
      << opened.error().message();
  EXPECT_EQ(owner.wanted.size(), 0U);
}

TEST_F(BorrowerTest, LeasesFromAsManyNodesAsAClusterHasAndSaysWhyNotFromTheNext) {
  {
    const auto one = borrower();
    ASSERT_TRUE(one->open_region(Seconds(0)).has_value());
    for (uint32_t slab = 1; slab < kMaxNodes; ++slab) leases->touch(page_of(slab));
    one->start(*thread);
    ASSERT_TRUE(client.comes_true([&] { return one->leased_slabs() >= kMaxNodes; }));
    leases->touch(page_of(kMaxNodes));
    leases->touch(page_of(kOnAKnownNode));
    one->ring();
    ASSERT_TRUE(
        client.comes_true([&] { return client.count("node n" + std::to_string(kMaxNodes)) > 0; }));
  }
  EXPECT_EQ(nodes.size(), size_t{kMaxNodes});
  EXPECT_EQ(owner.wanted.size(), size_t{kMaxNodes});
  EXPECT_EQ(leases->find(page_of(kMaxNodes - 1))->replicas[0]->node, NodeIndex{kMaxNodes - 1});
  EXPECT_FALSE(is_leased(kMaxNodes));
  EXPECT_TRUE(is_leased(kOnAKnownNode)) << "though it was asked for together with the other one";
  EXPECT_EQ(client.count("nodes"), 0U);
  EXPECT_EQ(client.leases_held(), 0U) << "given back, with what could not be used";
}

TEST_F(BorrowerTest, WhatHappensToOtherNodesAndRegionsCostsNoLookup) {
  const auto one = borrower();
  ASSERT_TRUE(one->open_region(Seconds(0)).has_value());
  one->start(*thread);
  ASSERT_TRUE(client.comes_true([&] { return client.count("heartbeat") > 2; }));
  EXPECT_EQ(client.count("events"), 0U) << "what happened before the region concerns nobody";
  for (int i = 100; i < 200; ++i) {
    client.happens(coordinator::EventKind::kNodeJoined, "n" + std::to_string(i), "");
    client.happens(coordinator::EventKind::kNodeLeft, "n" + std::to_string(i), "");
    client.happens(coordinator::EventKind::kLeaseLost, "n" + std::to_string(i), "r2");
  }
  ASSERT_TRUE(client.comes_true([&] { return client.count("events") > 0; }));
  client.happens(coordinator::EventKind::kNodeJoined, "n0", "");
  ASSERT_TRUE(client.comes_true([&] { return client.count("node n0") == 2; }));
  EXPECT_EQ(client.count("nodes"), 0U);
  EXPECT_EQ(client.count("region"), 0U);
  EXPECT_EQ(nodes.size(), 1U);
}

TEST_F(BorrowerTest, ReplicaOfALostLeaseIsLost) {
  const auto one = borrower();
  ASSERT_TRUE(one->open_region(Seconds(0)).has_value());
  one->start(*thread);
  client.lose_node("n0");
  client.happens(coordinator::EventKind::kLeaseLost, "n0", "r1");
  ASSERT_TRUE(client.comes_true([&] { return owner.lost.load() == 1; }));
  EXPECT_FALSE(leases->find(page_of(0))->replicas[0]->is_read());
}

TEST_F(BorrowerTest, ReplicaOfALostLeaseIsLostAlsoWhenTheEventWasForgotten) {
  const auto one = borrower();
  ASSERT_TRUE(one->open_region(Seconds(0)).has_value());
  one->start(*thread);
  client.lose_node("n0");
  client.forget_events();
  ASSERT_TRUE(client.comes_true([&] { return owner.lost.load() == 1; }));
  EXPECT_EQ(client.count("nodes"), 0U);
}

TEST_F(BorrowerTest, SlabOfANodeThatHasLeftIsLeasedAgainElsewhere) {
  client.lose_node("n0");
  const auto one = borrower();
  const Status refused = one->open_region(Seconds(0));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable) << "the next try may find another node";
  client.lose_node("n0");  // the coordinator detects it, too
  const Status opened = one->open_region(Seconds(60));
  ASSERT_TRUE(opened.has_value()) << opened.error().message();
  EXPECT_EQ(client.count("release"), 1U);
  EXPECT_EQ(nodes.name_of(leases->find(page_of(0))->replicas[0]->node), "n1000");
}

TEST_F(BorrowerTest, RegionIsGivenBackWhenNothingCouldBeMadeOfItsLeases) {
  client.lose_node("n0");
  {
    const auto one = borrower();
    EXPECT_FALSE(one->open_region(Seconds(0)).has_value());
    EXPECT_EQ(client.leases_held(), 1U);
  }
  EXPECT_EQ(client.leases_held(), 0U);
  EXPECT_EQ(client.count("delete"), 1U);
}

TEST_F(BorrowerTest, RegionIsGivenBackThoughTheCoordinatorIsBusyAtFirst) {
  struct Case {
    int not_done;
    int answers_lost;
    size_t tries;
  };
  for (const Case& c : {Case{1, 0, 2}, {0, 1, 2}, {2, 1, 4}}) {
    const size_t before = client.count("delete");
    client.lose_deletes(c.not_done, c.answers_lost);
    {
      const auto one = borrower();
      ASSERT_TRUE(one->open_region(Seconds(0)).has_value());
      EXPECT_EQ(client.leases_held(), 1U);
    }
    EXPECT_EQ(client.leases_held(), 0U);
    EXPECT_EQ(client.count("delete") - before, c.tries);
  }
}

TEST_F(BorrowerTest, CoordinatorThatIsGoneForGoodDoesNotKeepAProgramFromEnding) {
  client.lose_deletes(1000, 0);
  {
    const auto one = borrower();
    ASSERT_TRUE(one->open_region(Seconds(0)).has_value());
  }
  EXPECT_LT(client.count("delete"), 10U);
}

TEST_F(BorrowerTest, RegionOfAnEndedBorrowerIsGivenBackWhenTheCoordinatorIsBack) {
  client.lose_deletes(1000, 0);
  {
    const auto one = borrower();
    ASSERT_TRUE(one->open_region(Seconds(0)).has_value());
    one->start(*thread);
  }
  EXPECT_EQ(client.leases_held(), 1U);
  client.lose_deletes(1, 1);
  while (client.leases_held() != 0) std::this_thread::yield();
}

TEST_F(BorrowerTest, RegionThatWasNotOpenedIsMadeWithTheFirstSlabThatIsWanted) {
  const auto one = borrower();
  one->start(*thread);
  leases->touch(page_of(3));
  one->ring();
  ASSERT_TRUE(client.comes_true([&] { return is_leased(3); }));
  const std::vector<std::string> calls = client.calls();
  ASSERT_GE(calls.size(), 3U);
  EXPECT_EQ(calls[0], "create");
  EXPECT_EQ(calls[2], "lease");
  EXPECT_FALSE(is_leased(0)) << "nobody wants it";
}

TEST_F(BorrowerTest, RefusedLeaseIsTriedAgain) {
  const auto one = borrower();
  ASSERT_TRUE(one->open_region(Seconds(0)).has_value());
  one->start(*thread);
  client.fail_leases(ErrorCode::kExhausted);
  leases->touch(page_of(1));
  one->ring();
  ASSERT_TRUE(client.comes_true([&] { return client.count("lease") >= 3; }));
  EXPECT_FALSE(is_leased(1));
  client.fail_leases(std::nullopt);
  EXPECT_TRUE(client.comes_true([&] { return is_leased(1); })) << "without another ring";
  EXPECT_EQ(one->leased_slabs(), 2U);
}

TEST_F(BorrowerTest, WhereNotAllSlabsFitItLeasesAsManyAsFit) {
  const auto one = borrower();
  ASSERT_TRUE(one->open_region(Seconds(0)).has_value());
  client.lend_at_most(3);  // one is leased
  for (uint32_t slab = 1; slab <= 5; ++slab) leases->touch(page_of(slab));
  one->start(*thread);
  one->ring();
  EXPECT_TRUE(client.comes_true([&] { return one->leased_slabs() == 3; }));
  EXPECT_TRUE(is_leased(1));
  EXPECT_TRUE(is_leased(2));
  client.lend_at_most(kSlabs);
  EXPECT_TRUE(client.comes_true([&] { return one->leased_slabs() == 6; })) << "it tries again";
}

TEST_F(BorrowerTest, SlabOfAnotherSizeIsRefused) {
  client.lend_slabs_of(2 * kSlabBytes);
  const auto one = borrower();
  const Status opened = one->open_region(kPatience);
  ASSERT_FALSE(opened.has_value());
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalid) << "no second try could be better";
  EXPECT_FALSE(is_leased(0));
  EXPECT_EQ(client.count("lease"), 1U);
}

TEST_F(BorrowerTest, CoordinatorThatHasLostItsStateGetsANewRegionForFurtherSlabs) {
  const auto one = borrower();
  ASSERT_TRUE(one->open_region(Seconds(0)).has_value());
  one->start(*thread);
  client.forget_regions();
  ASSERT_TRUE(client.comes_true([&] { return client.count("create") == 2; }));
  EXPECT_TRUE(is_leased(0)) << "the node still honors it";
  leases->touch(page_of(1));
  one->ring();
  ASSERT_TRUE(client.comes_true([&] { return is_leased(1); }));
  EXPECT_EQ(client.lessee(), RegionId{"r2"});
  EXPECT_EQ(client.count("create"), 2U);
}

TEST_F(BorrowerTest, CoordinatorThatDoesNotAnswerKeepsTheRegion) {
  const auto one = borrower();
  ASSERT_TRUE(one->open_region(Seconds(0)).has_value());
  one->start(*thread);
  client.fail_heartbeats(ErrorCode::kUnavailable);
  const size_t before = client.count("heartbeat");
  ASSERT_TRUE(client.comes_true([&] { return client.count("heartbeat") > before + 3; }));
  EXPECT_EQ(client.count("create"), 1U);
  EXPECT_TRUE(is_leased(0));
  EXPECT_EQ(client.count("region"), 0U);
  client.lose_node("n0");  // its events may be forgotten before the coordinator is back
  client.fail_heartbeats(std::nullopt);
  ASSERT_TRUE(client.comes_true([&] { return owner.lost.load() == 1; }));
  EXPECT_GE(client.count("region"), 1U);
}

TEST_F(BorrowerTest, EventsWhoseLookupFailedAreReadAgain) {
  const auto one = borrower();
  ASSERT_TRUE(one->open_region(Seconds(0)).has_value());
  one->start(*thread);
  client.fail_lookups(ErrorCode::kUnavailable);
  client.happens(coordinator::EventKind::kNodeJoined, "n0", "");
  ASSERT_TRUE(client.comes_true([&] { return client.count("node n0") >= 4; }));
  client.fail_lookups(std::nullopt);
  const size_t polls = client.count("events");
  ASSERT_TRUE(client.comes_true([&] { return client.count("events") > polls; }));
  // The lookup has succeeded: no event is left.
  ASSERT_TRUE(client.comes_true([&, events = size_t{0}, beats = size_t{0}]() mutable {
    const bool none = client.count("events") == events && client.count("heartbeat") > beats + 2;
    if (!none && client.count("events") != events) {
      events = client.count("events");
      beats = client.count("heartbeat");
    }
    return none;
  }));
}

TEST_F(BorrowerTest, OwnerThatHasEndedIsNotCalledAndTheReplicasAreWatchedOn) {
  const auto one = borrower();
  ASSERT_TRUE(one->open_region(Seconds(0)).has_value());
  one->start(*thread);
  one->disown();
  const size_t wanted = owner.wanted.size();
  client.lose_node("n0");
  client.happens(coordinator::EventKind::kLeaseLost, "n0", "r1");
  ASSERT_TRUE(client.comes_true([&] { return !leases->find(page_of(0))->replicas[0]->is_read(); }));
  leases->touch(page_of(1));
  one->ring();
  ASSERT_TRUE(client.comes_true([&] { return is_leased(1); }));
  EXPECT_EQ(owner.lost, 0);
  EXPECT_EQ(owner.wanted.size(), wanted);
}

}  // namespace
}  // namespace farpage::pager
