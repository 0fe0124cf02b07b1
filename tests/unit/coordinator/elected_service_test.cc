// Several coordinators with an election among them: who leads, and what the others answer.
#include <atomic>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "coordinator/candidate.h"
#include "tests/unit/coordinator/test_service.h"
#include "tests/unit/http/raw_http.h"

namespace farpage::coordinator {
namespace {

using Json = nlohmann::json;

class TestTerm final : public Term {
 public:
  bool is_held() const override { return held && !ended; }
  bool has_ended() const override { return ended; }
  void resign() override { ended = true; }

  std::atomic<bool> held{true};
  std::atomic<bool> ended{false};
};

// What the coordinators of one test share.
struct Ballot {
  std::mutex mutex;
  std::shared_ptr<TestTerm> term;  // the latest
  std::string leader;
  std::unique_ptr<Store> store = make_memory_store();
};

class FencedStore final : public Store {
 public:
  FencedStore(Ballot& ballot, std::shared_ptr<Term> term)
      : ballot_(ballot), term_(std::move(term)) {}
  std::string_view kind() const override { return "fenced"; }
  Result<Snapshot> load() override {
    const std::lock_guard lock(ballot_.mutex);
    return ballot_.store->load();
  }
  Status write(const Changes& changes) override {
    const std::lock_guard lock(ballot_.mutex);
    if (term_->has_ended()) return fail(ErrorCode::kUnavailable, "the term has ended");
    return ballot_.store->write(changes);
  }

 private:
  Ballot& ballot_;
  const std::shared_ptr<Term> term_;
};

class TestElection final : public Election {
 public:
  explicit TestElection(Ballot& ballot) : ballot_(ballot) {}
  Result<Campaign> campaign(const std::string& url) override {
    const std::lock_guard lock(ballot_.mutex);
    if (ballot_.term && !ballot_.term->ended) return Campaign{nullptr, nullptr, ballot_.leader};
    ballot_.term = std::make_shared<TestTerm>();
    ballot_.leader = url;
    return Campaign{ballot_.term, std::make_unique<FencedStore>(ballot_, ballot_.term), url};
  }
  Milliseconds pause() const override { return Milliseconds(5); }

 private:
  Ballot& ballot_;
};

class ElectedServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (auto& service : services_) {
      auto made = Service::create_elected(
          test_options(), std::make_unique<TestElection>(ballot_),
          [this] { return agents_.client(); }, clock_);
      ASSERT_TRUE(made.has_value()) << made.error().message();
      service = std::move(*made);
    }
    auto client =
        Client::create({services_[0]->url() + "," + services_[1]->url(), "", Seconds(20)});
    ASSERT_TRUE(client.has_value());
    client_ = std::move(*client);
  }
  void TearDown() override {
    for (auto& service : services_) {
      EXPECT_EQ(service->check(), "");
      service->stop();
    }
  }

  // The index of the service that answers as leader; waits until one does.
  size_t leader() {
    for (size_t i = 0;; i = 1 - i) {
      if (raw_request(services_[i]->port(), "GET", "/readyz").status == 200) return i;
      std::this_thread::sleep_for(Milliseconds(1));
    }
  }
  // The `leader` of its refusal; nullopt: it leads.
  std::optional<std::string> named_by(size_t service) {
    const RawAnswer answer = raw_request(services_[service]->port(), "GET", "/v1/nodes");
    if (answer.status == 200) return std::nullopt;
    EXPECT_EQ(answer.status, 503);
    const Json problem = Json::parse(answer.body, nullptr, false);
    EXPECT_EQ(problem["code"], "unavailable");
    return problem["leader"].get<std::string>();
  }

  Ballot ballot_;
  ManualClock clock_;
  FakeAgents agents_;
  std::unique_ptr<Service> services_[2];
  std::unique_ptr<Client> client_;
};

TEST_F(ElectedServiceTest, WhoDoesNotLeadNamesTheLeader) {
  const size_t leads = leader();
  const size_t follows = 1 - leads;
  while (named_by(follows) != services_[leads]->url()) std::this_thread::yield();
  const uint16_t port = services_[follows]->port();
  EXPECT_EQ(raw_request(port, "GET", "/healthz").status, 200);
  EXPECT_EQ(raw_request(port, "GET", "/readyz").status, 503);
  EXPECT_NE(raw_request(port, "GET", "/metrics").body.find("farpage_coordinator_leads 0"),
            std::string::npos);
  for (const char* path : {"/v1/cluster", "/v1/regions", "/v1/images", "/v1/events", "/v1/store"})
    EXPECT_EQ(raw_request(port, "GET", path).status, 503) << path;
  const Json cluster =
      Json::parse(raw_request(services_[leads]->port(), "GET", "/v1/cluster").body, nullptr, false);
  EXPECT_EQ(cluster["leader"], services_[leads]->url());
}

TEST_F(ElectedServiceTest, NextTermHasWhatTheOneBeforeHasWritten) {
  ASSERT_TRUE(client_->join(test_node("n1", 4)).has_value());
  const auto region = client_->create_region(
      {.name = "r", .bytes = 2 * kMinSlabBytes, .replicas = 1, .slab_bytes = kMinSlabBytes});
  ASSERT_TRUE(region.has_value()) << region.error().message();
  services_[leader()]->stop();
  const auto found = client_->region(region->id);
  ASSERT_TRUE(found.has_value()) << found.error().message();
  EXPECT_EQ(found->leases.size(), 2U);
  EXPECT_TRUE(client_->delete_region(region->id).has_value());
  EXPECT_EQ(agents_.lent(), 0U);
}

TEST_F(ElectedServiceTest, TermThatIsNotHeldAnswersNothingAndMayGoOn) {
  const size_t leads = leader();
  ASSERT_TRUE(client_->join(test_node("n1", 4)).has_value());
  ballot_.term->held = false;
  EXPECT_EQ(named_by(leads), "");
  ballot_.term->held = true;
  EXPECT_EQ(named_by(leads), std::nullopt);
  EXPECT_EQ(client_->nodes()->size(), 1U);
}

TEST_F(ElectedServiceTest, CallsToNodesEndWithTheTerm) {
  const auto term = std::make_shared<TestTerm>();
  const auto agents = fenced_agents(agents_.client(), term);
  const std::string url = test_node("n1", 4).agent_url;
  const NodeSlabRequest slab{0, SlabLeaseRequest{RegionId{"r"}, SlabIndex{0}, 0}};
  const auto lent = agents->lease(url, {&slab, 1});
  ASSERT_TRUE(lent[0].has_value());
  term->ended = true;
  EXPECT_EQ(agents->lease(url, {&slab, 1})[0].error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(agents->revoke(url, 0, lent[0]->generation).error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(agents_.lent(), 1U);
}

}  // namespace
}  // namespace farpage::coordinator
