// Every route through the C++ client and real sockets.
#include "coordinator/service.h"

#include <chrono>
#include <thread>

#include "base/host.h"
#include "tests/unit/coordinator/test_service.h"
#include "tests/unit/http/raw_http.h"

namespace farpage::coordinator {
namespace {

TEST_F(ServiceTest, NodeJoinsIsListedAndLeaves) {
  const auto joined = client_->join(test_node("n1", 4));
  ASSERT_TRUE(joined.has_value()) << joined.error().message();
  EXPECT_EQ(joined->total_slabs, 4U);
  EXPECT_EQ(joined->free_slabs, 4U);
  EXPECT_EQ(joined->join.transports, test_node("n1", 4).transports);
  const auto nodes = client_->nodes();
  ASSERT_TRUE(nodes.has_value());
  ASSERT_EQ(nodes->size(), 1U);
  EXPECT_EQ((*nodes)[0].state, NodeState::kAlive);
  ASSERT_TRUE(client_->drain_node(NodeId{"n1"}).has_value());
  EXPECT_EQ(client_->nodes()->at(0).state, NodeState::kDraining);
  ASSERT_TRUE(client_->remove_node(NodeId{"n1"}, false).has_value());
  EXPECT_TRUE(client_->nodes()->empty());
}

TEST_F(ServiceTest, JoiningIs201TheFirstTimeAnd200After) {
  const auto post = [&] {
    return raw_request(port(), "POST", "/v1/nodes",
                       R"({"id":"n1","incarnation":7,"agent_url":"http://127.0.0.1:1",)"
                       R"("capacity_bytes":4194304,"slab_bytes":2097152,)"
                       R"("transports":[{"kind":"tcp","address":"127.0.0.1:2"}]})");
  };
  const RawAnswer first = post();
  EXPECT_EQ(first.status, 201) << first.body;
  EXPECT_NE(first.head.find("Location: /v1/nodes/n1"), std::string::npos);
  EXPECT_EQ(post().status, 200);
}

TEST_F(ServiceTest, HeartbeatOfAnUnknownNodeIs410WhichMeansJoinAgain) {
  const RawAnswer answer =
      raw_request(port(), "PUT", "/v1/nodes/n1/heartbeat", R"({"incarnation":1,"free_slabs":0})");
  EXPECT_EQ(answer.status, 410);
  EXPECT_TRUE(answer.is_problem());
  const Status status = client_->heartbeat_node(NodeId{"n1"}, NodeHeartbeat{1, 0, {}});
  EXPECT_EQ(status.error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(client_->join(test_node("n1", 2)).has_value());
  EXPECT_TRUE(client_->heartbeat_node(NodeId{"n1"}, NodeHeartbeat{1, 2, {}}).has_value());
  EXPECT_EQ(client_->heartbeat_node(NodeId{"n1"}, NodeHeartbeat{2, 2, {}}).error().code,
            ErrorCode::kNotFound);
}

TEST_F(ServiceTest, RegionGrowsShrinksAndIsDeleted) {
  ASSERT_TRUE(client_->join(test_node("n1", 8)).has_value());
  ASSERT_TRUE(client_->join(test_node("n2", 8)).has_value());
  const auto region = client_->create_region(test_region(2, 2));
  ASSERT_TRUE(region.has_value()) << region.error().message();
  ASSERT_EQ(region->leases.size(), 4U);
  for (const Lease& lease : region->leases) {
    EXPECT_EQ(lease.bytes, kMinSlabBytes);
    EXPECT_EQ(lease.rkeys.at(rdma::TransportKind::kTcp).value,
              FakeAgents::rkey_of(lease.node_slab, lease.generation.value));
  }
  EXPECT_NE(region->leases[0].node, region->leases[1].node);
  // Slabs 2 to 4 stay without a lease, and the lease of slab 1 does not change.
  const auto grown = client_->lease_slabs(region->id, {SlabIndex{1}, SlabIndex{5}});
  ASSERT_TRUE(grown.has_value()) << grown.error().message();
  ASSERT_EQ(grown->size(), 4U);
  EXPECT_EQ((*grown)[0].generation, region->leases[2].generation);
  EXPECT_EQ((*grown)[2].slab, SlabIndex{5});
  EXPECT_EQ(agents_.lent(), 6U);
  ASSERT_TRUE(client_->release_slabs(region->id, {SlabIndex{5}, SlabIndex{99}}).has_value());
  EXPECT_EQ(agents_.lent(), 4U);
  EXPECT_EQ(client_->region(region->id)->leases.size(), 4U);
  const auto heard = client_->heartbeat_region(region->id, {});
  ASSERT_TRUE(heard.has_value());
  EXPECT_EQ(heard->last_event, client_->events(0, Milliseconds(0))->next_since);
  ASSERT_TRUE(client_->delete_region(region->id).has_value());
  EXPECT_EQ(agents_.lent(), 0U);
  EXPECT_EQ(client_->region(region->id).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(client_->delete_region(region->id).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(client_->nodes()->at(0).free_slabs, 8U);
}

TEST_F(ServiceTest, RemoteKeysAreInLeaseRepliesAndNowhereElse) {
  ASSERT_TRUE(client_->join(test_node("n1", 4)).has_value());
  const auto region = client_->create_region(test_region(1));
  ASSERT_TRUE(region.has_value());
  const std::string rkey = rdma::to_text(RemoteKey{FakeAgents::rkey_of(0, 1)});
  EXPECT_NE(client_->get("/v1/regions/" + region->id.value)->find(rkey), std::string::npos);
  for (const char* path : {"/v1/regions", "/v1/nodes", "/v1/nodes/n1", "/v1/events", "/v1/cluster",
                           "/metrics", "/v1/nodes/n1/rdma/endpoint"}) {
    const auto body = client_->get(path);
    ASSERT_TRUE(body.has_value()) << path;
    EXPECT_EQ(body->find(rkey), std::string::npos) << path;
    EXPECT_EQ(body->find("rkey"), std::string::npos) << path;
  }
  EXPECT_TRUE(client_->regions()->at(0).leases.at(0).rkeys.empty());
}

TEST_F(ServiceTest, TooManySlabsIs507AndNothingIsLeased) {
  ASSERT_TRUE(client_->join(test_node("n1", 2)).has_value());
  const auto region = client_->create_region(test_region(3));
  ASSERT_FALSE(region.has_value());
  EXPECT_EQ(region.error().code, ErrorCode::kExhausted);
  EXPECT_EQ(client_->create_region(test_region(1, 2)).error().code, ErrorCode::kExhausted);
  EXPECT_EQ(agents_.lent(), 0U);
  EXPECT_TRUE(client_->regions()->empty());
}

TEST_F(ServiceTest, NodeThatLendsIsRemovedOnlyByForce) {
  ASSERT_TRUE(client_->join(test_node("n1", 2)).has_value());
  ASSERT_TRUE(client_->create_region(test_region(1)).has_value());
  EXPECT_EQ(client_->remove_node(NodeId{"n1"}, false).error().code, ErrorCode::kConflict);
  EXPECT_TRUE(client_->remove_node(NodeId{"n1"}, true).has_value());
}

TEST_F(ServiceTest, Defect7DeletedNodeDisappearsFromEveryListingAndItsLeasesAreLost) {
  ASSERT_TRUE(client_->join(test_node("node-a", 2)).has_value());
  const auto region = client_->create_region(test_region(2));
  ASSERT_TRUE(region.has_value());
  ASSERT_TRUE(client_->heartbeat_node(NodeId{"node-a"}, NodeHeartbeat{1, 0, {{"reads_total", 3}}})
                  .has_value());
  ASSERT_TRUE(client_->exchange(NodeId{"node-a"}, test_endpoint()).has_value());
  ASSERT_TRUE(client_->remove_node(NodeId{"node-a"}, true).has_value());
  for (const char* path : {"/v1/nodes", "/metrics", "/v1/cluster"})
    EXPECT_EQ(client_->get(path)->find("node-a"), std::string::npos) << path;
  for (const char* path : {"/v1/nodes/node-a", "/v1/nodes/node-a/rdma/endpoint"})
    EXPECT_EQ(client_->get(path).error().code, ErrorCode::kNotFound) << path;
  EXPECT_EQ(client_->exchange(NodeId{"node-a"}, test_endpoint()).error().code,
            ErrorCode::kNotFound);
  const auto after = client_->region(region->id);
  ASSERT_EQ(after->leases.size(), 2U);
  for (const Lease& lease : after->leases) EXPECT_TRUE(lease.lost);
  EXPECT_TRUE(sees(EventKind::kLeaseLost));
  EXPECT_TRUE(sees(EventKind::kNodeLeft));
  // The same process cannot join again; a restarted one can.
  EXPECT_EQ(client_->join(test_node("node-a", 2)).error().code, ErrorCode::kConflict);
  agents_.set_incarnation("http://node-a:7071", 2);
  EXPECT_TRUE(client_->join(test_node("node-a", 2, 2)).has_value());
}

TEST_F(ServiceTest, Defect8NodeThatJoinsLaterIsSeenByALongPollAndUsedWithoutRestart) {
  ASSERT_TRUE(client_->join(test_node("node-a", 1)).has_value());
  const auto region = client_->create_region(test_region(1));
  ASSERT_TRUE(region.has_value());
  EXPECT_FALSE(client_->lease_slabs(region->id, {SlabIndex{1}}).has_value());
  const uint64_t since = client_->events(0, Milliseconds(0))->next_since;
  Result<EventBatch> batch = fail(ErrorCode::kIo, "not asked");
  std::thread poller([&] { batch = client()->events(since, Milliseconds(30000)); });
  ASSERT_TRUE(client_->join(test_node("node-b", 1)).has_value());
  poller.join();
  ASSERT_TRUE(batch.has_value()) << batch.error().message();
  ASSERT_EQ(batch->events.size(), 1U);
  EXPECT_EQ(batch->events[0].kind, EventKind::kNodeJoined);
  EXPECT_EQ(batch->events[0].node, NodeId{"node-b"});
  EXPECT_FALSE(batch->missed);
  EXPECT_GT(batch->next_since, since);
  const auto leases = client_->lease_slabs(region->id, {SlabIndex{1}});
  ASSERT_TRUE(leases.has_value()) << leases.error().message();
  EXPECT_EQ(leases->at(0).node, NodeId{"node-b"});
}

TEST_F(ServiceTest, SessionReachesTheNodeAndIsNotListed) {
  ASSERT_TRUE(client_->join(test_node("n1", 2)).has_value());
  rdma::QueuePairEndpoint ours = test_endpoint();
  ours.session = 0xfedcba9876543210;
  const auto theirs = client_->exchange(NodeId{"n1"}, ours);
  ASSERT_TRUE(theirs.has_value()) << theirs.error().message();
  EXPECT_EQ(theirs->session, ours.session) << "the node gives back what it was told";
  const auto listed = client_->get("/v1/nodes/n1/rdma/endpoint");
  ASSERT_TRUE(listed.has_value());
  EXPECT_NE(listed->find("\"qpn\":78"), std::string::npos);
  EXPECT_EQ(listed->find("session"), std::string::npos);
}

TEST_F(ServiceTest, StaleEndpointOfARestartedNodeIsNotListed) {
  ASSERT_TRUE(client_->join(test_node("n1", 2)).has_value());
  const auto theirs = client_->exchange(NodeId{"n1"}, test_endpoint());
  ASSERT_TRUE(theirs.has_value()) << theirs.error().message();
  EXPECT_EQ(theirs->qpn, 78U);
  EXPECT_NE(client_->get("/v1/nodes/n1/rdma/endpoint")->find("\"qpn\":78"), std::string::npos);
  const auto region = client_->create_region(test_region(1));
  ASSERT_TRUE(region.has_value());
  agents_.set_incarnation("http://n1:7071", 2);
  ASSERT_TRUE(client_->join(test_node("n1", 2, 2)).has_value());
  EXPECT_EQ(client_->get("/v1/nodes/n1/rdma/endpoint")->find("\"qpn\":78"), std::string::npos);
  EXPECT_TRUE(client_->region(region->id)->leases.at(0).lost);
}

TEST_F(ServiceTest, ExchangeWithASilentAgentSaysSo) {
  ASSERT_TRUE(client_->join(test_node("n1", 2)).has_value());
  agents_.set_mood("http://n1:7071", FakeAgents::Mood::kUnreachable);
  const auto theirs = client_->exchange(NodeId{"n1"}, test_endpoint());
  ASSERT_FALSE(theirs.has_value());
  EXPECT_EQ(theirs.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(theirs.error().context.find("n1"), std::string::npos);
}

TEST_F(ServiceTest, SilentNodeAndRegionExpire) {
  ASSERT_TRUE(client_->join(test_node("n1", 2)).has_value());
  const auto region = client_->create_region(test_region(1));
  ASSERT_TRUE(region.has_value());
  clock_.advance(Seconds(6));
  EXPECT_TRUE(sees(EventKind::kNodeLost));
  EXPECT_EQ(client_->nodes()->at(0).state, NodeState::kLost);
  EXPECT_FALSE(client_->region(region->id)->leases.at(0).lost);
  ASSERT_TRUE(client_->heartbeat_node(NodeId{"n1"}, NodeHeartbeat{1, 1, {}}).has_value());
  EXPECT_EQ(client_->nodes()->at(0).state, NodeState::kAlive);
  clock_.advance(Seconds(61));
  EXPECT_TRUE(sees(EventKind::kRegionDeleted));
  EXPECT_TRUE(client_->regions()->empty());
}

TEST_F(ServiceTest, TooManyLongPollsGet503WithRetryAfter) {
  ServiceOptions options = test_options();
  options.max_long_polls = 0;
  start(options);
  const RawAnswer refused = raw_request(port(), "GET", "/v1/events?timeout=5");
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.is_problem());
  EXPECT_NE(refused.head.find("Retry-After: 1"), std::string::npos);
  EXPECT_EQ(raw_request(port(), "GET", "/v1/events").status, 200);
}

TEST_F(ServiceTest, StopWakesLongPolls) {
  const auto polling = client();
  const auto start = std::chrono::steady_clock::now();
  std::thread poller([&] { static_cast<void>(polling->events(0, Milliseconds(60000))); });
  while (client_->get("/metrics")->find("farpage_coordinator_long_polls 1") == std::string::npos)
    std::this_thread::yield();
  service_->stop();
  poller.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, Seconds(30));
}

class WatchersTest : public ServiceTest {
 protected:
  void start_watchers(size_t count, const std::string& timeout) {
    const uint64_t since = client_->events(0, Milliseconds(0))->next_since;
    for (size_t i = 0; i < count; ++i)
      watchers_.push_back(
          raw_send(port(), "GET /v1/events?since=" + std::to_string(since) + "&timeout=" + timeout +
                               " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"));
  }
  void await_waiting(size_t count) {
    const std::string line = "\nfarpage_coordinator_long_polls " + std::to_string(count) + "\n";
    while (client_->get("/metrics")->find(line) == std::string::npos)
      std::this_thread::sleep_for(Milliseconds(1));
  }

  std::vector<Fd> watchers_;
};

TEST_F(WatchersTest, ThousandWaitWithoutAThreadAndEachSeesTheEvent) {
  constexpr size_t kWatchers = 1000;
  raise_descriptor_limit();
  ServiceOptions options = test_options();
  options.max_long_polls = kWatchers;
  start(options);
  const size_t threads = threads_of_this_process();
  start_watchers(kWatchers, "60");
  await_waiting(kWatchers);
  EXPECT_EQ(threads_of_this_process(), threads);
  EXPECT_EQ(raw_request(port(), "GET",
                        "/v1/events?timeout=60&since=" +
                            std::to_string(client_->events(0, Milliseconds(0))->next_since))
                .status,
            503)
      << "one more";
  ASSERT_TRUE(client_->join(test_node("n1", 4)).has_value());
  for (const Fd& watcher : watchers_) {
    const RawAnswer answer = raw_receive(watcher);
    EXPECT_EQ(answer.status, 200);
    EXPECT_NE(answer.body.find("node_joined"), std::string::npos) << answer.body;
  }
  await_waiting(0);
}

TEST_F(WatchersTest, OneWhoseClientGoesAwayIsForgotten) {
  start_watchers(4, "60");
  await_waiting(4);
  watchers_.pop_back();
  watchers_.pop_back();
  await_waiting(2);
  ASSERT_TRUE(client_->join(test_node("n1", 4)).has_value());
  for (const Fd& watcher : watchers_) EXPECT_EQ(raw_receive(watcher).status, 200);
}

TEST_F(WatchersTest, EachIsAnsweredWithNothingAfterItsTime) {
  start_watchers(2, "60");
  await_waiting(2);
  start_watchers(2, "0.05");
  for (size_t i = 2; i < 4; ++i) {
    const RawAnswer answer = raw_receive(watchers_[i]);
    EXPECT_EQ(answer.status, 200);
    EXPECT_NE(answer.body.find("\"events\":[]"), std::string::npos) << answer.body;
  }
  await_waiting(2);
}

TEST_F(WatchersTest, StopAnswersThoseThatWait) {
  ServiceOptions options = test_options();
  options.max_long_polls = 100;
  start(options);
  start_watchers(100, "60");
  await_waiting(100);
  service_->stop();
  for (const Fd& watcher : watchers_) EXPECT_EQ(raw_receive(watcher).status, 200);
}

TEST_F(ServiceTest, OpenRoutesAnswer) {
  EXPECT_EQ(*client_->get("/healthz"), R"({"status":"ok"})");
  EXPECT_EQ(*client_->get("/readyz"), R"({"status":"ready"})");
  EXPECT_NE(client_->get("/version")->find(FARPAGE_VERSION), std::string::npos);
  EXPECT_NE(client_->get("/")->find("/openapi.json"), std::string::npos);
  EXPECT_NE(client_->get("/v1/cluster")->find("\"store\":\"memory\""), std::string::npos);
}

TEST_F(ServiceTest, ConcurrentBorrowersNeverGetTheSameSlab) {
  ASSERT_TRUE(client_->join(test_node("n1", 40)).has_value());
  ASSERT_TRUE(client_->join(test_node("n2", 40)).has_value());
  std::vector<std::thread> borrowers;
  std::vector<std::vector<Lease>> got(8);
  for (size_t i = 0; i < got.size(); ++i)
    borrowers.emplace_back([&, i] {
      const auto mine = client();
      const auto region = mine->create_region(test_region(4, 2));
      if (region) got[i] = region->leases;
    });
  for (std::thread& borrower : borrowers) borrower.join();
  std::set<std::pair<std::string, uint32_t>> seen;
  for (const auto& leases : got) {
    EXPECT_EQ(leases.size(), 8U);
    for (const Lease& lease : leases)
      EXPECT_TRUE(seen.emplace(lease.node.value, lease.node_slab).second);
  }
}

TEST_F(ServiceTest, ConcurrentRequestsForOneSlabOfARegionGetTheSameLease) {
  ASSERT_TRUE(client_->join(test_node("n1", 8)).has_value());
  const auto region = client_->create_region(test_region(0));
  ASSERT_TRUE(region.has_value());
  std::vector<std::thread> askers;
  std::vector<Result<std::vector<Lease>>> got(4, fail(ErrorCode::kIo, "not asked"));
  for (auto& answer : got)
    askers.emplace_back([&] { answer = client()->lease_slabs(region->id, {SlabIndex{3}}); });
  for (std::thread& asker : askers) asker.join();
  for (const auto& answer : got) {
    ASSERT_TRUE(answer.has_value()) << answer.error().message();
    EXPECT_EQ(answer->at(0).generation, got[0]->at(0).generation);
    EXPECT_EQ(answer->at(0).node_slab, got[0]->at(0).node_slab);
  }
  EXPECT_EQ(agents_.lent(), 1U);
}

TEST(Service, RefusesToListenBeyondLoopbackWithoutAToken) {
  const ManualClock clock;
  FakeAgents agents;
  ServiceOptions options = test_options();
  options.host = "0.0.0.0";
  const auto refused = Service::create(options, make_memory_store(), agents.client(), clock);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalid);
  EXPECT_NE(refused.error().context.find("token"), std::string::npos);
  options.insecure = true;
  EXPECT_TRUE(Service::create(options, make_memory_store(), agents.client(), clock).has_value());
  options.insecure = false;
  options.token = "secret";
  EXPECT_TRUE(Service::create(options, make_memory_store(), agents.client(), clock).has_value());
}

TEST(Service, TakenPortIsAConflictNotASecondListener) {
  const ManualClock clock;
  FakeAgents agents;
  ServiceOptions options = test_options();
  const auto first = Service::create(options, make_memory_store(), agents.client(), clock);
  ASSERT_TRUE(first.has_value());
  options.port = (*first)->port();
  const auto second = Service::create(options, make_memory_store(), agents.client(), clock);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
}

TEST(Client, SaysThatNobodyAnswers) {
  uint16_t port = 0;
  {
    const ManualClock clock;
    FakeAgents agents;
    const auto gone = Service::create(test_options(), make_memory_store(), agents.client(), clock);
    ASSERT_TRUE(gone.has_value());
    port = (*gone)->port();
  }
  auto client = Client::create(
      ClientOptions{"http://127.0.0.1:" + std::to_string(port), "", Milliseconds(2000)});
  ASSERT_TRUE(client.has_value());
  EXPECT_EQ((*client)->nodes().error().code, ErrorCode::kUnavailable);
  for (const char* url :
       {"", "127.0.0.1:1", "https://h:1", "http://h", "http://h:0", "http://h:1/x"})
    EXPECT_FALSE(Client::create(ClientOptions{url, "", Milliseconds(1)}).has_value()) << url;
}

}  // namespace
}  // namespace farpage::coordinator
