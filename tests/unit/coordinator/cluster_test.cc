// Conversations with nodes that fail, stores that fail, and coordinators that restart.
#include "coordinator/cluster.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <latch>
#include <thread>

#include "coordinator/memory_store.h"
#include "coordinator/sqlite_store.h"
#include "tests/unit/coordinator/fake_agents.h"

namespace farpage::coordinator {
namespace {

using Mood = FakeAgents::Mood;

// Its writes fail while `fails` is true.
class FailingStore final : public Store {
 public:
  explicit FailingStore(const bool& fails) : fails_(fails), inner_(make_memory_store()) {}
  std::string_view kind() const override { return "failing"; }
  Result<Snapshot> load() override { return inner_->load(); }
  Status write(const Changes& changes) override {
    if (fails_) return fail(ErrorCode::kExhausted, "the disk is full");
    return inner_->write(changes);
  }

 private:
  const bool& fails_;
  std::unique_ptr<Store> inner_;
};

// Its first write after `hold` is set waits for `may_write`; `writes` counts all.
class HoldingStore final : public Store {
 public:
  struct Control {
    std::atomic<bool> hold{false};
    std::latch asked{1};
    std::latch may_write{1};
    std::atomic<int> writes{0};
  };
  explicit HoldingStore(Control& control) : control_(control), inner_(make_memory_store()) {}
  std::string_view kind() const override { return "holding"; }
  Result<Snapshot> load() override { return inner_->load(); }
  Status write(const Changes& changes) override {
    ++control_.writes;
    if (control_.hold.exchange(false)) {
      control_.asked.count_down();
      control_.may_write.wait();
    }
    return inner_->write(changes);
  }

 private:
  Control& control_;
  std::unique_ptr<Store> inner_;
};

// Revokes no slab before `may_answer`.
class HoldingAgents final : public AgentClient {
 public:
  HoldingAgents(std::unique_ptr<AgentClient> agents, std::latch& asked, std::latch& may_answer)
      : agents_(std::move(agents)), asked_(asked), may_answer_(may_answer) {}
  std::vector<Result<SlabLeaseReply>> lease(const std::string& url,
                                            std::span<const NodeSlabRequest> slabs) override {
    return agents_->lease(url, slabs);
  }
  Status revoke(const std::string& url, uint32_t slab, Generation generation) override {
    asked_.count_down();
    may_answer_.wait();
    return agents_->revoke(url, slab, generation);
  }
  Result<rdma::QueuePairEndpoint> connect(const std::string& url,
                                          const rdma::QueuePairEndpoint& peer) override {
    return agents_->connect(url, peer);
  }
  Status add_slabs(const std::string& url, std::span<const uint32_t> slabs,
                   uint32_t in_all) override {
    return agents_->add_slabs(url, slabs, in_all);
  }
  Status withdraw_slabs(const std::string& url, std::span<const uint32_t> slabs) override {
    return agents_->withdraw_slabs(url, slabs);
  }
  Status repair_image(const std::string& url, const ImageId& image) override {
    return agents_->repair_image(url, image);
  }
  Result<uint64_t> incarnation(const std::string& url) override {
    return agents_->incarnation(url);
  }

 private:
  const std::unique_ptr<AgentClient> agents_;
  std::latch& asked_;
  std::latch& may_answer_;
};

class ClusterTest : public ::testing::Test {
 protected:
  void SetUp() override { start(make_memory_store()); }
  void TearDown() override {
    EXPECT_EQ(cluster_->check(), "");
    EXPECT_EQ(agents_.double_lends(), expected_double_lends_);
  }
  void start(std::unique_ptr<Store> store) {
    StateOptions options;
    options.seed = 99;
    options.first_sequence = 1;
    options.longest_tick = Seconds(1 << 20);  // these tests move the clock in large steps
    cluster_.reset();
    auto made = Cluster::create(options, std::move(store), agents_.client(), clock_);
    ASSERT_TRUE(made.has_value()) << made.error().message();
    cluster_ = std::move(*made);
  }
  void join(const std::string& id, uint32_t slabs) {
    ASSERT_TRUE(cluster_->join(test_node(id, slabs)).has_value());
  }
  static std::string url(const std::string& id) { return "http://" + id + ":7071"; }
  Totals totals() const { return cluster_->facts().totals; }

  ManualClock clock_;
  FakeAgents agents_;
  std::unique_ptr<Cluster> cluster_;
  size_t expected_double_lends_ = 0;
};

TEST_F(ClusterTest, DeletionThatIsRepeatedWhileANodeIsToldLearnsThatItIsDone) {
  std::latch asked(1);
  std::latch may_answer(1);
  StateOptions options;
  options.first_sequence = 1;
  cluster_ = std::move(*Cluster::create(
      options, make_memory_store(),
      std::make_unique<HoldingAgents>(agents_.client(), asked, may_answer), clock_));
  join("n1", 4);
  const RegionId region = cluster_->create_region(test_region(1))->id;
  std::thread first([&] { EXPECT_TRUE(cluster_->delete_region(region).has_value()); });
  asked.wait();
  const Status second = cluster_->delete_region(region);
  may_answer.count_down();
  first.join();
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kNotFound) << second.error().message();
  EXPECT_EQ(agents_.lent(), 0U);
}

TEST_F(ClusterTest, NodeLendsAsMuchAsItIsToldWhenItAnswersAgain) {
  join("n1", 6);
  join("n2", 2);
  agents_.set_mood(url("n1"), Mood::kUnreachable);
  ASSERT_TRUE(cluster_->lend(NodeId{"n1"}, {2 * kMinSlabBytes}).has_value());
  cluster_->adjust_lending();
  EXPECT_EQ(cluster_->node(NodeId{"n1"})->total_slabs, 6U);
  agents_.set_mood(url("n1"), Mood::kLosesAnswers);
  cluster_->adjust_lending();
  agents_.set_mood(url("n1"), Mood::kGood);
  cluster_->adjust_lending();
  EXPECT_EQ(cluster_->node(NodeId{"n1"})->total_slabs, 2U);
  EXPECT_EQ(agents_.withdrawn(url("n1")).size(), 4U);
  EXPECT_TRUE(cluster_->create_region(test_region(4)).has_value());
  EXPECT_FALSE(cluster_->create_region(test_region(1)).has_value());
  ASSERT_TRUE(cluster_->lend(NodeId{"n1"}, {300 * kMinSlabBytes}).has_value());
  cluster_->adjust_lending();
  EXPECT_EQ(cluster_->node(NodeId{"n1"})->total_slabs, 300U);
  EXPECT_TRUE(agents_.withdrawn(url("n1")).empty());
  EXPECT_TRUE(cluster_->create_region(test_region(298)).has_value());
  EXPECT_EQ(agents_.lends_without_memory(), 0U);
}

TEST_F(ClusterTest, UnreachableNodeIsReplacedByAnother) {
  join("n1", 4);
  join("n2", 4);
  agents_.set_mood(url("n1"), Mood::kUnreachable);
  const auto region = cluster_->create_region(test_region(3));
  ASSERT_TRUE(region.has_value()) << region.error().message();
  for (const Lease& lease : region->leases) EXPECT_EQ(lease.node, NodeId{"n2"});
  EXPECT_EQ(totals().slabs_placing, 0U);
  EXPECT_EQ(totals().slabs_leased, 3U);
}

TEST_F(ClusterTest, NodeThatRefusesIsNamedAndNothingIsHalfLeased) {
  join("n1", 4);
  agents_.set_mood(url("n1"), Mood::kRefuses);
  const auto region = cluster_->create_region(test_region(2));
  ASSERT_FALSE(region.has_value());
  EXPECT_EQ(region.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(region.error().context.find("n1"), std::string::npos);
  EXPECT_TRUE(cluster_->regions().empty());
  EXPECT_EQ(totals().slabs_free, 4U);
}

TEST_F(ClusterTest, LostAnswerIsFoundOutAndTheSlabComesBack) {
  join("n1", 4);
  agents_.set_mood(url("n1"), Mood::kLosesAnswers);
  EXPECT_FALSE(cluster_->create_region(test_region(1)).has_value());
  EXPECT_EQ(agents_.lent(), 1U);  // granted, but the answer was lost
  EXPECT_EQ(totals().slabs_revoking, 1U);
  agents_.set_mood(url("n1"), Mood::kGood);
  clock_.advance(Cluster::kRevocationBackoff);
  cluster_->retry_revocations();
  EXPECT_EQ(agents_.lent(), 0U);
  EXPECT_EQ(totals().slabs_free, 4U);
}

TEST_F(ClusterTest, FailedRevocationIsRepeatedAfterTheNextHeartbeat) {
  join("n1", 4);
  const auto region = cluster_->create_region(test_region(2));
  ASSERT_TRUE(region.has_value());
  agents_.set_mood(url("n1"), Mood::kUnreachable);
  ASSERT_TRUE(cluster_->delete_region(region->id).has_value());
  EXPECT_EQ(totals().slabs_revoking, 2U);
  agents_.set_mood(url("n1"), Mood::kGood);
  cluster_->retry_revocations();  // too early for a retry
  EXPECT_EQ(totals().slabs_revoking, 2U);
  ASSERT_TRUE(cluster_->heartbeat_node(NodeId{"n1"}, NodeHeartbeat{1, 2, {}}).has_value());
  cluster_->retry_revocations();
  EXPECT_EQ(totals().slabs_free, 4U);
  EXPECT_EQ(agents_.lent(), 0U);
}

TEST_F(ClusterTest, RemovedNodeIsToldToTakeItsSlabsBack) {
  join("n1", 4);
  ASSERT_TRUE(cluster_->create_region(test_region(2)).has_value());
  ASSERT_TRUE(cluster_->remove_node(NodeId{"n1"}, true).has_value());
  cluster_->retry_revocations();
  EXPECT_EQ(agents_.lent(), 0U);
  EXPECT_EQ(cluster_->facts().pending_revocations, 0U);
}

TEST_F(ClusterTest, RemovedNodeThatIsGoneIsNotAskedForEver) {
  join("n1", 4);
  ASSERT_TRUE(cluster_->create_region(test_region(1)).has_value());
  agents_.set_mood(url("n1"), Mood::kUnreachable);
  ASSERT_TRUE(cluster_->remove_node(NodeId{"n1"}, true).has_value());
  for (int i = 0; i < Cluster::kMaxOrphanRevocations; ++i) {
    EXPECT_EQ(cluster_->facts().pending_revocations, 1U) << i;
    cluster_->retry_revocations();
    clock_.advance(Cluster::kRevocationBackoff);
  }
  EXPECT_EQ(cluster_->facts().pending_revocations, 0U);
}

TEST_F(ClusterTest, SlabsOfStrangersAreLeftAloneAndOthersAreFound) {
  join("n1", 4);
  agents_.lend_to_stranger(url("n1"), 0);
  agents_.lend_to_stranger(url("n1"), 1);
  expected_double_lends_ = 2;
  const auto region = cluster_->create_region(test_region(2));
  ASSERT_TRUE(region.has_value()) << region.error().message();
  EXPECT_EQ(totals().slabs_foreign, 2U);
  EXPECT_EQ(totals().slabs_leased, 2U);
  EXPECT_EQ(agents_.lent(), 4U);
}

TEST_F(ClusterTest, SlabOfAnotherSizeIsNotAccepted) {
  join("n1", 4);
  agents_.set_slab_bytes(2 * kMinSlabBytes);
  EXPECT_FALSE(cluster_->create_region(test_region(1)).has_value());
  EXPECT_EQ(agents_.lent(), 0U);  // leased, found to have the wrong size, returned
}

TEST_F(ClusterTest, StoreThatCannotBeWrittenFailsTheCallAndIsTriedAgain) {
  bool fails = false;
  start(std::make_unique<FailingStore>(fails));
  join("n1", 4);
  const auto region = cluster_->create_region(test_region(1));
  ASSERT_TRUE(region.has_value());
  fails = true;
  const auto refused = cluster_->lease_slabs(region->id, {SlabIndex{1}});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(refused.error().context.find("disk is full"), std::string::npos);
  EXPECT_FALSE(cluster_->facts().store_works);
  EXPECT_EQ(totals().slabs_placing, 0U);
  EXPECT_EQ(agents_.lent(), 1U);
  fails = false;
  cluster_->tick();
  EXPECT_TRUE(cluster_->facts().store_works);
  EXPECT_TRUE(cluster_->lease_slabs(region->id, {SlabIndex{1}}).has_value());
}

TEST_F(ClusterTest, NodesKeepWhatIsReleasedUntilThatIsWritten) {
  bool fails = false;
  start(std::make_unique<FailingStore>(fails));
  join("n1", 4);
  const auto region = cluster_->create_region(test_region(1));
  ASSERT_TRUE(region.has_value());
  fails = true;
  EXPECT_FALSE(cluster_->delete_region(region->id).has_value());
  cluster_->retry_revocations();
  EXPECT_EQ(agents_.lent(), 1U);  // another coordinator on this store may have its lease
  fails = false;
  cluster_->tick();
  cluster_->retry_revocations();
  EXPECT_EQ(agents_.lent(), 0U);
}

TEST_F(ClusterTest, ChangesThatComeWhileTheStoreWritesAreWrittenTogether) {
  constexpr size_t kOthers = 8;
  HoldingStore::Control store;
  start(std::make_unique<HoldingStore>(store));
  join("n1", 4);
  const uint64_t seen = cluster_->last_event();
  store.writes = 0;
  store.hold = true;
  std::vector<std::thread> threads;
  const auto create = [&] { EXPECT_TRUE(cluster_->create_region(test_region(0)).has_value()); };
  threads.emplace_back(create);
  store.asked.wait();
  for (size_t i = 0; i < kOthers; ++i) threads.emplace_back(create);
  while (cluster_->regions().size() != kOthers + 1) std::this_thread::yield();
  EXPECT_TRUE(cluster_->heartbeat_node(NodeId{"n1"}, NodeHeartbeat{1, 4, {}}).has_value())
      << "what changes nothing that is stored does not wait";
  EXPECT_TRUE(cluster_->events(seen).events.empty()) << "they are not written";
  EXPECT_EQ(cluster_->last_event(), seen);
  store.may_write.count_down();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store.writes, 2) << "the first one, and the others together";
  EXPECT_EQ(cluster_->events(seen).events.size(), kOthers + 1);
}

TEST_F(ClusterTest, SecondProcessWithTheNameOfARunningNodeIsRefused) {
  join("n1", 4);
  const auto region = cluster_->create_region(test_region(2));
  ASSERT_TRUE(region.has_value());
  NodeJoin second = test_node("n1", 4, 2);
  second.agent_url = "http://other:7071";
  const auto refused = cluster_->join(second);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  EXPECT_NE(refused.error().context.find("--name"), std::string::npos) << refused.error().context;
  clock_.advance(Seconds(30));
  cluster_->tick();  // refused even after silence: the agent still answers
  EXPECT_EQ(cluster_->join(second).error().code, ErrorCode::kConflict);
  EXPECT_EQ(cluster_->node(NodeId{"n1"})->join.incarnation, 1U);
  const auto kept = cluster_->region(region->id);
  for (const Lease& lease : kept->leases) EXPECT_FALSE(lease.lost);
}

TEST_F(ClusterTest, NodeThatCrashedAndComesBackAtOnceIsLetIn) {
  join("n1", 4);
  agents_.set_mood(url("n1"), Mood::kUnreachable);
  NodeJoin second = test_node("n1", 4, 2);
  second.agent_url = "http://other:7071";
  EXPECT_TRUE(cluster_->join(second).has_value());
  // The same port as before: the new process answers there.
  agents_.set_incarnation("http://other:7071", 3);
  NodeJoin third = test_node("n1", 4, 3);
  third.agent_url = "http://other:7071";
  EXPECT_TRUE(cluster_->join(third).has_value());
}

TEST_F(ClusterTest, JoinInThePlaceOfANodeThatHangsWaitsUntilItsHeartbeatsEnd) {
  join("n1", 4);
  agents_.set_mood(url("n1"), Mood::kLosesAnswers);
  NodeJoin second = test_node("n1", 4, 2);
  second.agent_url = "http://other:7071";
  EXPECT_EQ(cluster_->join(second).error().code, ErrorCode::kUnavailable);
  clock_.advance(Seconds(6));
  cluster_->tick();
  EXPECT_TRUE(cluster_->join(second).has_value());
}

class RestartTest : public ClusterTest {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "farpage-cluster-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    restart();
  }
  void TearDown() override {
    ClusterTest::TearDown();
    cluster_.reset();
    std::filesystem::remove_all(directory_);
  }
  void restart() {
    cluster_.reset();
    auto store = open_sqlite_store(directory_ / "state.db");
    ASSERT_TRUE(store.has_value()) << store.error().message();
    start(std::move(*store));
  }
  std::filesystem::path directory_;
};

TEST_F(RestartTest, KnowsNodesRegionsAndLeasesAndGivesThemAFullGracePeriod) {
  join("n1", 4);
  join("n2", 4);
  const auto region = cluster_->create_region(test_region(2, 2));
  ASSERT_TRUE(region.has_value());
  ASSERT_TRUE(cluster_->set_service(NodeId{"n2"}, NodeService::kDraining).has_value());
  const uint64_t seen = cluster_->events(0).next_since;
  clock_.advance(Seconds(1000));
  restart();
  cluster_->tick();
  EXPECT_EQ(cluster_->node(NodeId{"n1"})->state, NodeState::kAlive);
  EXPECT_EQ(cluster_->node(NodeId{"n2"})->state, NodeState::kDraining);
  const auto after = cluster_->region(region->id);
  ASSERT_TRUE(after.has_value());
  ASSERT_EQ(after->leases.size(), 4U);
  EXPECT_EQ(after->leases[0].rkeys, region->leases[0].rkeys);
  EXPECT_EQ(after->leases[0].generation, region->leases[0].generation);
  // Heartbeats are enough; nobody joins again.
  EXPECT_TRUE(cluster_->heartbeat_node(NodeId{"n1"}, NodeHeartbeat{1, 2, {}}).has_value());
  EXPECT_TRUE(cluster_->heartbeat_region(region->id, {}).has_value());
  EXPECT_TRUE(cluster_->lease_slabs(region->id, {SlabIndex{0}, SlabIndex{1}}).has_value());
  // The event numbers continue.
  EXPECT_FALSE(cluster_->events(seen).missed);
  join("n3", 4);
  EXPECT_EQ(cluster_->events(seen).events.at(0).sequence, seen + 1);
  clock_.advance(Seconds(61));
  cluster_->tick();
  EXPECT_FALSE(cluster_->region(region->id).has_value());
}

TEST_F(RestartTest, ForgottenSlabsAreStillRevokedAfterwards) {
  join("n1", 4);
  const auto region = cluster_->create_region(test_region(2));
  ASSERT_TRUE(region.has_value());
  agents_.set_mood(url("n1"), Mood::kUnreachable);
  ASSERT_TRUE(cluster_->delete_region(region->id).has_value());
  restart();
  EXPECT_EQ(totals().slabs_revoking, 2U);
  agents_.set_mood(url("n1"), Mood::kGood);
  cluster_->retry_revocations();
  EXPECT_EQ(agents_.lent(), 0U);
  restart();
  EXPECT_EQ(totals().slabs_free, 4U);
}

TEST_F(RestartTest, NodeThatRestartedMeanwhileLosesItsLeases) {
  join("n1", 4);
  const auto region = cluster_->create_region(test_region(1));
  ASSERT_TRUE(region.has_value());
  restart();
  agents_.set_incarnation(url("n1"), 2);
  ASSERT_TRUE(cluster_->join(test_node("n1", 4, 2)).has_value());
  EXPECT_TRUE(cluster_->region(region->id)->leases.at(0).lost);
  restart();
  EXPECT_TRUE(cluster_->region(region->id)->leases.at(0).lost);
}

NodeJoin with_identity(const std::string& name, char digit, uint64_t incarnation,
                       const std::string& host = "") {
  NodeJoin node = test_node(name, 4, incarnation);
  node.identity = std::string(kIdentityDigits, digit);
  if (!host.empty()) node.agent_url = "http://" + host + ":7071";
  return node;
}

TEST_F(ClusterTest, RestartWithTheSameIdentityTakesTheNameAgainAndLosesItsLeases) {
  ASSERT_TRUE(cluster_->join(with_identity("n1", 'a', 1)).has_value());
  const auto region = cluster_->create_region(test_region(1));
  ASSERT_TRUE(region.has_value());
  agents_.set_mood(url("n1"), Mood::kUnreachable);  // the old process has ended
  const auto joined = cluster_->join(with_identity("n1", 'a', 2));
  ASSERT_TRUE(joined.has_value()) << joined.error().message();
  EXPECT_TRUE(cluster_->region(region->id)->leases[0].lost);
}

TEST_F(ClusterTest, StrangerHasToWaitUntilTheLeasesOfTheNameAreGivenUp) {
  ASSERT_TRUE(cluster_->join(with_identity("n1", 'a', 1)).has_value());
  const auto region = cluster_->create_region(test_region(2));
  ASSERT_TRUE(region.has_value());
  const NodeJoin stranger = with_identity("n1", 'b', 2, "elsewhere");
  const auto alive = cluster_->join(stranger);
  ASSERT_FALSE(alive.has_value());
  EXPECT_NE(alive.error().context.find("already running"), std::string::npos);
  agents_.set_mood(url("n1"), Mood::kUnreachable);
  const auto refused = cluster_->join(stranger);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
  for (const char* part : {"http://n1:7071", "2 slabs", "/v1/nodes/n1?force=true", "--name"})
    EXPECT_NE(refused.error().context.find(part), std::string::npos) << refused.error().context;
  ASSERT_TRUE(cluster_->delete_region(region->id).has_value());
  EXPECT_TRUE(cluster_->join(stranger).has_value());
}

TEST_F(ClusterTest, CopyOfADiskIsRefusedWithBothAddresses) {
  ASSERT_TRUE(cluster_->join(with_identity("n1", 'a', 1)).has_value());
  for (const char* name : {"n1", "n2"}) {
    const auto refused = cluster_->join(with_identity(name, 'a', 2, "copy"));
    ASSERT_FALSE(refused.has_value()) << name;
    EXPECT_EQ(refused.error().code, ErrorCode::kConflict);
    for (const char* part : {"http://n1:7071", "http://copy:7071", "copy of the other"})
      EXPECT_NE(refused.error().context.find(part), std::string::npos) << refused.error().context;
  }
  agents_.set_mood(url("n1"), Mood::kUnreachable);
  EXPECT_TRUE(cluster_->join(with_identity("n2", 'a', 2, "copy")).has_value())
      << "the only one that runs has another name now";
}

TEST_F(ClusterTest, NodeWithoutAnIdentityIsReplacedWhenItDoesNotAnswer) {
  ASSERT_TRUE(cluster_->join(test_node("n1", 4, 1)).has_value());
  const auto region = cluster_->create_region(test_region(1));
  agents_.set_mood(url("n1"), Mood::kUnreachable);
  EXPECT_TRUE(cluster_->join(test_node("n1", 4, 2)).has_value());
  EXPECT_TRUE(cluster_->join(with_identity("n1", 'b', 3)).has_value());
}

TEST_F(ClusterTest, NodeWithoutAnIdentityIsAStrangerToOneThatHasOne) {
  ASSERT_TRUE(cluster_->join(with_identity("n1", 'a', 1)).has_value());
  const auto region = cluster_->create_region(test_region(1));
  agents_.set_mood(url("n1"), Mood::kUnreachable);
  EXPECT_EQ(cluster_->join(test_node("n1", 4, 2)).error().code, ErrorCode::kConflict);
  EXPECT_TRUE(cluster_->join(with_identity("n1", 'a', 3)).has_value());
}

}  // namespace
}  // namespace farpage::coordinator
