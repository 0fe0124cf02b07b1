// The store, the election and the client of etcd, with one real etcd.
#include "coordinator/etcd_store.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "coordinator/sqlite_store.h"
#include "tests/unit/coordinator/store_contract.h"

namespace farpage::coordinator {
namespace {

constexpr char kPrefix[] = "/test/v1/";

// One that no other process has; there is a moment until the server takes it.
uint16_t free_port() {
  const int listening = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(::bind(listening, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(listening, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(listening);
  return ntohs(address.sin_port);
}

bool has_etcd() {
  // 3.4 is the first one with /v3 for JSON.
  return std::system(
             "etcd --version 2>/dev/null | grep -Eq '^etcd Version: 3\\.([4-9]|[1-9][0-9])'") == 0;
}

// An etcd of its own for each test; it ends with the test.
class EtcdStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_etcd()) GTEST_SKIP() << "etcd 3.4 or newer is not installed";
    std::string path = ::testing::TempDir() + "farpage-etcd-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    url_ = "http://127.0.0.1:" + std::to_string(free_port());
    const std::string peer = "http://127.0.0.1:" + std::to_string(free_port());
    start({"etcd", "--data-dir", path + "/data", "--listen-client-urls", url_,
           "--advertise-client-urls", url_, "--listen-peer-urls", peer,
           "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer});
    auto client = EtcdClient::create(url_);
    ASSERT_TRUE(client.has_value()) << client.error().message();
    client_ = std::move(*client);
    bool answers = false;
    for (int i = 0; i < 600 && !answers; ++i) {
      answers = client_->range("x", "").has_value();
      if (!answers) std::this_thread::sleep_for(Milliseconds(100));
    }
    ASSERT_TRUE(answers) << "etcd does not answer: see " << directory_ / "log";
  }

  void TearDown() override {
    if (etcd_ > 0) {
      ::kill(etcd_, SIGKILL);
      ::waitpid(etcd_, nullptr, 0);
    }
    if (!directory_.empty()) std::filesystem::remove_all(directory_);
  }

  void start(std::vector<std::string> words) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const std::string log = directory_ / "log";
    etcd_ = ::fork();
    ASSERT_GE(etcd_, 0);
    if (etcd_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ::dup2(file, STDOUT_FILENO);
    ::dup2(file, STDERR_FILENO);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }

  std::shared_ptr<EtcdTerm> win(const ElectionTimes& times = {}) {
    const auto elected = elect(client_, kPrefix, "http://me:7070", times);
    EXPECT_TRUE(elected.has_value()) << elected.error().message();
    EXPECT_NE(elected->term, nullptr) << elected->leader;
    return elected->term;
  }

  std::unique_ptr<Store> store_of(std::shared_ptr<EtcdTerm> term, EtcdLimits limits = {}) {
    auto store = make_etcd_store(client_, kPrefix, std::move(term), limits);
    EXPECT_TRUE(store->load().has_value());
    return store;
  }

  void put(const std::string& key, const std::string& value) {
    EtcdTransaction transaction;
    transaction.changes = {{kPrefix + key, value}};
    ASSERT_TRUE(client_->transact(transaction)->done);
  }

  size_t count(const std::string& below) {
    return client_->range(kPrefix + below, end_of_prefix(kPrefix + below))->records.size();
  }

  std::filesystem::path directory_;
  std::string url_;
  pid_t etcd_ = 0;
  std::shared_ptr<const EtcdClient> client_;
};

// What a term that begins now finds; numbers of events are not used twice.
void expect_next_term_finds(Store& next) {
  const auto snapshot = next.load();
  ASSERT_TRUE(snapshot.has_value()) << snapshot.error().message();
  EXPECT_GT(snapshot->last_sequence, 1234U);
  EXPECT_EQ(snapshot->leases.size(), some_changes().leases.size());
  EXPECT_EQ(snapshot->images.size(), 1U);
}

TEST_F(EtcdStoreTest, PutsAndRemoves) {
  const auto term = win();
  const auto store = store_of(term);
  EXPECT_EQ(store->kind(), "etcd");
  ASSERT_TRUE(store->write(some_changes()).has_value());
  ASSERT_TRUE(store->write(some_changes()).has_value());
  auto snapshot = read_etcd_store(*client_, kPrefix);
  ASSERT_TRUE(snapshot.has_value()) << snapshot.error().message();
  expect_snapshot_of_some_changes(*snapshot);
  ASSERT_TRUE(store->write(removal_of_all()).has_value());
  snapshot = read_etcd_store(*client_, kPrefix);
  EXPECT_TRUE(snapshot->nodes.empty() && snapshot->regions.empty() && snapshot->leases.empty() &&
              snapshot->revocations.empty() && snapshot->images.empty());
  EXPECT_EQ(snapshot->last_sequence, 2000U);
}

TEST_F(EtcdStoreTest, ChangeOfSeveralTransactionsGoesThroughTheJournal) {
  const auto term = win();
  const auto store = store_of(term, {.changes = 2, .bytes = 1 << 20});
  ASSERT_TRUE(store->write(some_changes()).has_value());
  EXPECT_EQ(count("journal/"), 0U);
  expect_snapshot_of_some_changes(*read_etcd_store(*client_, kPrefix));
  ASSERT_TRUE(store->write(removal_of_all()).has_value());
  EXPECT_EQ(read_etcd_store(*client_, kPrefix)->leases.size(), 0U);
}

TEST_F(EtcdStoreTest, ThousandsOfLeasesAreReadInPages) {
  Changes changes = some_changes();
  const Lease lease = *changes.leases.begin()->second;
  for (uint32_t slab = 10; slab < 2510; ++slab) {
    Lease other = lease;
    other.slab = SlabIndex{slab};
    changes.leases[LeaseKey{RegionId{"r1"}, other.slab, number_of(other)}] = other;
  }
  const auto term = win();
  ASSERT_TRUE(store_of(term)->write(changes).has_value());
  EXPECT_EQ(read_etcd_store(*client_, kPrefix)->leases.size(), changes.leases.size());
}

TEST_F(EtcdStoreTest, OneLeadsUntilItResigns) {
  auto first = win();
  const auto second = elect(client_, kPrefix, "http://other:7070", {});
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->term, nullptr);
  EXPECT_EQ(second->leader, "http://me:7070");
  EXPECT_TRUE(first->is_held());
  first->resign();
  EXPECT_FALSE(first->is_held());
  EXPECT_NE(elect(client_, kPrefix, "http://other:7070", {})->term, nullptr);
}

TEST_F(EtcdStoreTest, LeaseIsRenewedAndEndsWhenItIsNot) {
  const auto renewed = win();
  std::this_thread::sleep_for(Seconds(5));
  EXPECT_TRUE(renewed->is_held());
  renewed->resign();
  const auto silent = win({.renewal = Seconds(3600)});
  std::shared_ptr<EtcdTerm> next;
  for (int i = 0; i < 600 && !next; ++i) {
    next = elect(client_, kPrefix, "http://other:7070", {})->term;
    // It knows by its own clock before another one can be elected.
    if (next) {
      EXPECT_FALSE(silent->is_held());
    }
    std::this_thread::sleep_for(Milliseconds(100));
  }
  EXPECT_NE(next, nullptr);
}

TEST_F(EtcdStoreTest, WriteOfATermThatHasEndedIsRefused) {
  // Its clock says for long that it is held.
  const auto deposed = win({.renewal = Seconds(3600), .margin = -Seconds(3600)});
  const auto old = store_of(deposed);
  ASSERT_TRUE(old->write(some_changes()).has_value());
  EtcdTransaction removal;
  removal.changes = {{std::string(kPrefix) + "leader", std::nullopt}};
  ASSERT_TRUE(client_->transact(removal)->done);
  const auto term = win();
  const auto store = store_of(term);
  EXPECT_FALSE(deposed->has_ended());
  const Status late = old->write(removal_of_all());
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(deposed->has_ended());
  expect_snapshot_of_some_changes(*read_etcd_store(*client_, kPrefix));
  EXPECT_TRUE(store->write(removal_of_all()).has_value());
}

TEST_F(EtcdStoreTest, TransactionThatIsExecutedLateDoesNotEndTheTerm) {
  const auto term = win();
  const auto store = store_of(term);
  ASSERT_TRUE(store->write(some_changes()).has_value());
  put("last_sequence", "1300");  // as one of the store's own, whose answer was lost
  ASSERT_TRUE(store->write(removal_of_all()).has_value());
  EXPECT_EQ(read_etcd_store(*client_, kPrefix)->last_sequence, 2000U);
}

TEST_F(EtcdStoreTest, NextTermAppliesAJournalWhoseEndIsMarked) {
  auto term = win();
  ASSERT_TRUE(store_of(term)->write(some_changes()).has_value());
  term->resign();
  // Two parts, of which the first was applied by the term before.
  put("journal/parts/a/000000", R"([{"key":"images/vm"}])");
  put("journal/parts/a/000001", R"([{"key":"leases/r1/00003/1"},{"key":"nodes/n1"}])");
  put("journal/parts/b/000000", R"([{"key":"regions/r1"}])");  // of one without an end
  put("journal/end", R"({"id":"a","parts":2})");
  EXPECT_EQ(read_etcd_store(*client_, kPrefix)->leases.size(), 2U);
  term = win();
  const auto snapshot = make_etcd_store(client_, kPrefix, term)->load();
  ASSERT_TRUE(snapshot.has_value()) << snapshot.error().message();
  EXPECT_EQ(snapshot->leases.size(), 2U);
  EXPECT_TRUE(snapshot->images.empty() && snapshot->nodes.empty());
  EXPECT_EQ(snapshot->regions.size(), 1U);
  EXPECT_EQ(count("journal/"), 0U);
  EXPECT_EQ(count("leases/"), 2U);
}

TEST_F(EtcdStoreTest, JournalWithoutAnEndIsDropped) {
  auto term = win();
  ASSERT_TRUE(store_of(term)->write(some_changes()).has_value());
  term->resign();
  put("journal/parts/a/000000", R"([{"key":"regions/r1"}])");
  term = win();
  const auto store = make_etcd_store(client_, kPrefix, term);
  expect_next_term_finds(*store);
  EXPECT_EQ(count("journal/"), 0U);
}

TEST_F(EtcdStoreTest, RecordThatIsDamagedIsNamed) {
  const auto term = win();
  const auto store = store_of(term);
  ASSERT_TRUE(store->write(some_changes()).has_value());
  put("leases/r1/00003/1", R"({"region":"r1","lease":{"rkeys":{"tcp":"1234567"}}})");
  const auto snapshot = store->load();
  ASSERT_FALSE(snapshot.has_value());
  EXPECT_NE(snapshot.error().context.find("leases/r1/00003/1"), std::string::npos);
  EXPECT_EQ(snapshot.error().context.find("1234567"), std::string::npos);
}

TEST_F(EtcdStoreTest, CopyIsAFileOfSqliteAndFillsAnEmptyEtcd) {
  auto term = win();
  auto store = store_of(term);
  ASSERT_TRUE(store->write(some_changes()).has_value());
  const auto bytes = store->copy();
  ASSERT_TRUE(bytes.has_value()) << bytes.error().message();
  const std::string path = directory_ / "copy.db";
  std::ofstream(path, std::ios::binary) << *bytes;
  auto copy = open_sqlite_store(path);
  ASSERT_TRUE(copy.has_value()) << copy.error().message();
  const auto snapshot = (*copy)->load();
  expect_snapshot_of_some_changes(*snapshot);
  EXPECT_EQ(fill_etcd_store(client_, kPrefix, *snapshot).error().code, ErrorCode::kConflict);
  term->resign();
  EXPECT_EQ(fill_etcd_store(client_, kPrefix, *snapshot).error().code, ErrorCode::kConflict);
  const std::string other = "/other/v1/";
  const Status filled = fill_etcd_store(client_, other, *snapshot);
  ASSERT_TRUE(filled.has_value()) << filled.error().message();
  expect_snapshot_of_some_changes(*read_etcd_store(*client_, other));
}

TEST_F(EtcdStoreTest, MemberThatDoesNotAnswerIsPassedOver) {
  const auto client = EtcdClient::create("http://127.0.0.1:1," + url_);
  ASSERT_TRUE(client.has_value());
  EXPECT_TRUE((*client)->range("x", "").has_value());
  EXPECT_EQ((*client)->keep_alive(77).error().code, ErrorCode::kNotFound);
  EXPECT_EQ((*client)->revoke(77).error().code, ErrorCode::kNotFound);
  EtcdTransaction wrong;
  wrong.changes = {{"", "value"}};
  const auto refused = (*client)->transact(wrong);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalid);
  EXPECT_NE(refused.error().context.find("key is not provided"), std::string::npos);
  ASSERT_EQ(::kill(etcd_, SIGSTOP), 0);
  EXPECT_EQ((*client)->range("x", "").error().code, ErrorCode::kUnavailable);
  ASSERT_EQ(::kill(etcd_, SIGCONT), 0);
}

}  // namespace
}  // namespace farpage::coordinator
