// The binary as a process: exit statuses, signals, ready lines, and the effect of each option.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/host.h"
#include "child_process.h"
#include "coordinator/client.h"

namespace farpage::cli {
namespace {

using nlohmann::json;

constexpr char kToken[] = "0123456789abcdef0123456789abcdef";

class ProcessTest : public testing::Test {
 protected:
  ProcessTest() {
    std::string pattern = testing::TempDir() + "farpage-process-XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~ProcessTest() override {
    children_.clear();
    std::filesystem::remove_all(directory_);
  }

  ChildProcess& start(std::vector<std::string> arguments) {
    return *children_.emplace_back(std::make_unique<ChildProcess>(std::move(arguments)));
  }
  // Starts a coordinator, waits until it is ready, and sets url_.
  ChildProcess& start_coordinator(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"coordinator", "--output", "json"};
    if (std::find(more.begin(), more.end(), "--listen") == more.end())
      arguments.insert(arguments.end(), {"--listen", "127.0.0.1:0"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    ChildProcess& child = start(std::move(arguments));
    const json ready = json::parse(child.read_line(), nullptr, false);
    EXPECT_TRUE(ready.is_object() && ready["event"] == "ready") << ready;
    if (ready.is_object()) url_ = ready.value("url", "");
    return child;
  }
  std::vector<std::string> node_arguments(std::vector<std::string> more,
                                          const std::string& name = "n1") const {
    std::vector<std::string> arguments = {"node",
                                          "--coordinator",
                                          url_,
                                          "--name",
                                          name,
                                          "--lend",
                                          "8M",
                                          "--slab",
                                          "2M",
                                          "--output",
                                          "json",
                                          "--shm-socket",
                                          directory_ + "/s/n1.sock"};
    for (size_t i = 0; i < more.size(); ++i) arguments.push_back(more[i]);
    return arguments;
  }
  // Starts a node, waits until it has joined, and sets ready_ to its ready line.
  ChildProcess& start_node(std::vector<std::string> more = {}, const std::string& name = "n1") {
    ChildProcess& child = start(node_arguments(std::move(more), name));
    ready_ = json::parse(child.read_line(), nullptr, false);
    EXPECT_TRUE(ready_.is_object() && ready_["event"] == "ready") << ready_;
    return child;
  }
  std::unique_ptr<coordinator::Client> client(const std::string& token = "") const {
    return std::move(*coordinator::Client::create({url_, token}));
  }
  std::string write_file(const std::string& name, const std::string& text) {
    std::ofstream(directory_ + "/" + name) << text;
    ::chmod((directory_ + "/" + name).c_str(), 0600);
    return directory_ + "/" + name;
  }

  std::string directory_;
  std::string url_;
  json ready_;
  std::vector<std::unique_ptr<ChildProcess>> children_;
};

TEST_F(ProcessTest, OutputToAFullDiskIsAFailure) {
  ChildProcess shell({"-c", std::string("exec ") + FARPAGE_BINARY + " version > /dev/full"},
                     "/bin/sh");
  EXPECT_TRUE(
      shell.wait_for_log("farpage: cannot write to standard output: No space left on device"));
  EXPECT_EQ(shell.wait(), 1);
}

TEST_F(ProcessTest, SigtermAndSigintEndBothCleanly) {
  for (const int signal_number : {SIGTERM, SIGINT}) {
    ChildProcess& coordinator = start_coordinator();
    ChildProcess& node = start_node();
    EXPECT_EQ(client()->nodes()->size(), 1U);
    node.send(signal_number);
    EXPECT_EQ(node.wait(), 0) << node.log();
    EXPECT_EQ(client()->nodes()->size(), 0U) << "it left in order";
    coordinator.send(signal_number);
    EXPECT_EQ(coordinator.wait(), 0) << coordinator.log();
  }
}

TEST_F(ProcessTest, LeavingWithBorrowersWaitsAndThenSaysWhatWasLost) {
  start_coordinator();
  ChildProcess& node = start_node({"--leave-timeout", "1ms"});
  ASSERT_TRUE(client()->create_region({"r", 2 << 20, 1, 2 << 20}).has_value());
  node.send(SIGTERM);
  EXPECT_EQ(node.wait(), 1);
  EXPECT_NE(node.log().find("--leave-timeout"), std::string::npos) << node.log();
}

TEST_F(ProcessTest, SecondSignalForces) {
  start_coordinator();
  ChildProcess& node = start_node({"--leave-timeout", "1h"});
  ASSERT_TRUE(client()->create_region({"r", 2 << 20, 1, 2 << 20}).has_value());
  node.send(SIGTERM);
  ASSERT_TRUE(node.wait_for_log("node leaving"));
  node.send(SIGTERM);
  EXPECT_EQ(node.wait(), 128 + SIGTERM);
}

TEST_F(ProcessTest, SignalEndsANodeThatNeverFoundItsCoordinator) {
  url_ = "http://127.0.0.1:1";
  ChildProcess& node = start(node_arguments({}));
  ASSERT_TRUE(node.wait_for_log("coordinator_away"));
  node.send(SIGTERM);
  EXPECT_EQ(node.wait(), 0) << node.log();
  EXPECT_EQ(node.output(), "") << "never joined, never ready";
}

TEST_F(ProcessTest, KilledCoordinatorWithSqliteKnowsItsNodesAndLeasesAgain) {
  const std::string store = "sqlite:" + directory_ + "/c.db";
  ChildProcess& coordinator = start_coordinator({"--store", store});
  ChildProcess& node = start_node({"--heartbeat", "20ms"});
  const auto region = client()->create_region({"r", 2 << 20, 1, 2 << 20});
  ASSERT_TRUE(region.has_value()) << region.error().message();
  coordinator.send(SIGKILL);
  EXPECT_EQ(coordinator.wait(), 128 + SIGKILL);
  ASSERT_TRUE(node.wait_for_log("coordinator_away"));
  start_coordinator({"--store", store, "--listen", url_.substr(std::string("http://").size())});
  ASSERT_TRUE(node.wait_for_log("coordinator_back"));
  const auto again = client()->region(region->id);
  ASSERT_TRUE(again.has_value()) << again.error().message();
  ASSERT_EQ(again->leases.size(), 1U);
  EXPECT_EQ(again->leases[0].generation, region->leases[0].generation);
  EXPECT_FALSE(again->leases[0].lost);
}

TEST_F(ProcessTest, Defect6NodeKnobsShowInTheCluster) {
  start_coordinator();
  start_node({"--transports", "tcp", "--heartbeat", "20ms"});
  auto nodes = client()->nodes();
  ASSERT_EQ(nodes->size(), 1U);
  EXPECT_EQ(nodes->at(0).join.id.value, "n1");
  EXPECT_EQ(nodes->at(0).total_slabs, 4U);
  EXPECT_EQ(nodes->at(0).join.slab_bytes, uint64_t{2} << 20);
  ASSERT_EQ(nodes->at(0).join.transports.size(), 1U);
  EXPECT_EQ(nodes->at(0).join.transports[0].kind, rdma::TransportKind::kTcp);
  children_.pop_back();

  start_node({"--transports", "shm", "--advertise", "localhost"}, "n2");
  nodes = client()->nodes();
  const auto n2 = std::find_if(nodes->begin(), nodes->end(),
                               [](const auto& node) { return node.join.id.value == "n2"; });
  ASSERT_NE(n2, nodes->end());
  EXPECT_EQ(n2->join.agent_url.find("http://localhost:"), 0U);
  ASSERT_EQ(n2->join.transports.size(), 1U);
  EXPECT_EQ(n2->join.transports[0].text, boot_id() + ":" + directory_ + "/s/n1.sock");
}

TEST_F(ProcessTest, SecondNodeWithTheNameOfARunningOneEndsWithStatus2AndTakesNothing) {
  start_coordinator();
  ChildProcess& first = start_node({"--heartbeat", "20ms"});
  ASSERT_TRUE(client()->create_region({"r", 2 << 20, 1, 2 << 20}).has_value());
  const uint64_t incarnation = client()->nodes()->at(0).join.incarnation;
  ChildProcess& second = start(node_arguments({"--transports", "tcp"}));
  EXPECT_EQ(second.wait(), 2);
  EXPECT_NE(second.log().find("--name"), std::string::npos) << second.log();
  EXPECT_EQ(second.output(), "");
  EXPECT_EQ(client()->nodes()->at(0).join.incarnation, incarnation);
  const auto regions = client()->regions();
  ASSERT_EQ(regions->size(), 1U);
  for (const auto& lease : regions->at(0).leases) EXPECT_FALSE(lease.lost);
  // A node that crashed and restarts at once is admitted.
  first.send(SIGKILL);
  EXPECT_EQ(first.wait(), 128 + SIGKILL);
  start_node();
  EXPECT_NE(client()->nodes()->at(0).join.incarnation, incarnation);
}

TEST_F(ProcessTest, TransportThatAnOptionNamesMustWork) {
  start_coordinator();
  start_node();
  ChildProcess& same_socket = start(node_arguments({}, "n2"));
  EXPECT_EQ(same_socket.wait(), 1);
  EXPECT_NE(same_socket.log().find("--shm-socket: shm does not work here"), std::string::npos)
      << same_socket.log();
  EXPECT_EQ(client()->nodes()->size(), 1U);
}

TEST_F(ProcessTest, TokenIsAskedForOnEveryWay) {
  const std::string right = write_file("right", kToken);
  const std::string wrong = write_file("wrong", "fedcba9876543210fedcba9876543210");
  start_coordinator({"--token-file", right});
  EXPECT_EQ(client()->nodes().error().code, ErrorCode::kDenied);

  ChildProcess& refused = start(node_arguments({"--token-file", wrong}));
  EXPECT_EQ(refused.wait(), 1);
  EXPECT_NE(refused.log().find("the coordinator refuses this node"), std::string::npos)
      << refused.log();

  start_node({"--token-file", right});
  // The coordinator calls the agent with the same token.
  EXPECT_TRUE(client(kToken)->create_region({"r", 2 << 20, 1, 2 << 20}).has_value());

  ChildProcess& denied = start({"status", "--coordinator", url_});
  EXPECT_EQ(denied.wait(), 1);
  ChildProcess& allowed = start({"status", "--coordinator", url_, "--token-file", right});
  EXPECT_EQ(allowed.wait(), 0);
  for (const auto& child : children_) {
    EXPECT_EQ(child->log().find(kToken), std::string::npos);
    EXPECT_EQ(child->output().find(kToken), std::string::npos);
  }
}

TEST_F(ProcessTest, StatusShowsTheClusterAsTableAndAsJson) {
  start_coordinator();
  start_node();
  ASSERT_TRUE(client()->create_region({"mine", 4 << 20, 1, 2 << 20}).has_value());
  ChildProcess& table = start({"status", "--coordinator", url_});
  ASSERT_EQ(table.wait(), 0);
  EXPECT_NE(table.output().find("n1"), std::string::npos) << table.output();
  EXPECT_NE(table.output().find("mine"), std::string::npos) << table.output();
  EXPECT_NE(table.output().find("1 of 1 nodes alive, 4M of 8M free, 1 regions"), std::string::npos)
      << table.output();
  ChildProcess& machine = start({"status", "--coordinator", url_, "--output", "json"});
  ASSERT_EQ(machine.wait(), 0);
  const json all = json::parse(machine.output());
  EXPECT_EQ(all["nodes"][0]["id"], "n1");
  EXPECT_EQ(all["regions"][0]["name"], "mine");
  EXPECT_TRUE(all["cluster"].is_object());
  EXPECT_EQ(machine.output().find("rkey"), std::string::npos) << machine.output();
}

TEST_F(ProcessTest, ACoordinatorThatIsBusyKeepsHundredsOfConnectionsForLater) {
  ChildProcess& coordinator = start_coordinator();
  coordinator.send(SIGSTOP);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  address.sin_port = ::htons(static_cast<uint16_t>(std::stoi(url_.substr(url_.rfind(':') + 1))));
  std::vector<Fd> connections;
  for (int i = 0; i < 200; ++i) {
    Fd& connection = connections.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    ASSERT_TRUE(connection.valid());
    if (::connect(connection.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
      continue;
    // On loopback the handshake completes at once, or never when the queue is full.
    pollfd poll{.fd = connection.get(), .events = POLLOUT, .revents = 0};
    ASSERT_EQ(::poll(&poll, 1, 500), 1) << "connection " << i;
  }
  coordinator.send(SIGCONT);
  connections.clear();
  EXPECT_TRUE(client()->nodes().has_value());
}

TEST_F(ProcessTest, WrongSettingsEndWithStatus2AndOneLineWithTheCure) {
  struct Case {
    std::vector<std::string> arguments;
    const char* cure;
  };
  const std::string open_to_all = write_file("open", kToken);
  ::chmod(open_to_all.c_str(), 0644);
  const std::vector<std::string> node = {"node", "--coordinator", "http://127.0.0.1:1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), node.begin(), node.end());
    return more;
  };
  for (const Case& c : {Case{{"coordinator", "--listen", "0.0.0.0:0"}, "--insecure"},
                        {{"coordinator", "--listen", "here"}, "--listen"},
                        {{"coordinator", "--store", "etcd:x"}, "--store"},
                        {{"coordinator", "--node-ttl", "0"}, "--node-ttl"},
                        {{"status", "--coordinator", "nonsense"}, "http://"},
                        {with({"--listen-agent", "0.0.0.0:0", "--advertise", "x"}), "--token-file"},
                        {with({"--lend", "1M", "--transports", "tcp"}), "lend:"},
                        {with({"--slab", "3M", "--transports", "tcp"}), "slab:"},
                        {with({"--transports", "pigeon"}), "pigeon"},
                        {with({"--token-file", open_to_all}), "chmod 600"}}) {
    ChildProcess& child = start(c.arguments);
    EXPECT_EQ(child.wait(), 2) << child.log();
    EXPECT_NE(child.log().find(c.cure), std::string::npos) << child.log();
    EXPECT_EQ(child.output(), "");
  }
}

TEST_F(ProcessTest, WhatTheHostCannotDoEndsWithStatus1AndTheCure) {
  const std::vector<std::string> node = {"node", "--coordinator", "http://127.0.0.1:1"};
  struct Case {
    std::vector<std::string> arguments;
    const char* cure;
  };
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), node.begin(), node.end());
    return more;
  };
  for (const Case& c :
       {Case{with({"--transports", "tcp", "--lend", "60T", "--slab", "1G"}), "--lend"},
        {with({"--transports", "tcp", "--lend", "60T", "--slab", "1G", "--hugepages"}),
         "vm.nr_hugepages"},
        {{"status", "--coordinator", "http://127.0.0.1:1"}, "127.0.0.1:1"}}) {
    ChildProcess& child = start(c.arguments);
    EXPECT_EQ(child.wait(), 1) << child.log();
    EXPECT_NE(child.log().find(c.cure), std::string::npos) << child.log();
  }
}

TEST_F(ProcessTest, LogLevelTakesEffect) {
  for (const auto& [level, is_logged] : {std::pair{"info", true}, std::pair{"error", false}}) {
    ChildProcess& child = start({"coordinator", "--listen", "127.0.0.1:0", "--log-level", level});
    EXPECT_EQ(child.read_line().find("coordinator ready: http://127.0.0.1:"), 0U);
    child.send(SIGTERM);
    EXPECT_EQ(child.wait(), 0);
    EXPECT_EQ(child.log().find("stopping") != std::string::npos, is_logged) << child.log();
  }
}

TEST_F(ProcessTest, DoctorAndVersionAnswerInBothForms) {
  ChildProcess& doctor = start({"doctor", "--output", "json"});
  const int status = doctor.wait();
  const json report = json::parse(doctor.output());
  EXPECT_EQ(report["can_run"], status == 0);
  EXPECT_GE(report["checks"].size(), 8U);
  ChildProcess& version = start({"version", "--output", "json"});
  ASSERT_EQ(version.wait(), 0);
  const json build = json::parse(version.output());
  EXPECT_EQ(build["version"], FARPAGE_VERSION);
  EXPECT_FALSE(build["commit"].get<std::string>().empty());
  EXPECT_GE(build["transports"].size(), 2U);
}

}  // namespace
}  // namespace farpage::cli
