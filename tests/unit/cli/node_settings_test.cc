#include "cli/node_settings.h"

#include <gtest/gtest.h>

namespace farpage::cli {
namespace {

using rdma::TransportKind;

TEST(HostPort, ParsesNamesAddressesAndBrackets) {
  EXPECT_EQ(parse_host_port("127.0.0.1:7070", "--x")->port, 7070);
  EXPECT_EQ(parse_host_port("node-1.example:0", "--x")->host, "node-1.example");
  EXPECT_EQ(parse_host_port("[::1]:80", "--x")->host, "::1");
  EXPECT_TRUE(is_loopback(*parse_host_port("[::1]:80", "--x")));
  EXPECT_TRUE(is_wildcard(*parse_host_port("0.0.0.0:80", "--x")));
  for (const char* text : {"", ":80", "host", "host:", "host:65536", "host:8x", "host:-1", "::1:80",
                           "[::1:80", "[]:80", "http://h:80"}) {
    const auto parsed = parse_host_port(text, "--listen-agent");
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_EQ(parsed.error().context.find("--listen-agent: '"), 0U) << parsed.error().context;
  }
}

TEST(TransportChoice, AutoTriesAllAndNamesMustBeKnown) {
  EXPECT_TRUE(rdma::parse_transports("auto", "--transports")->automatic);
  EXPECT_EQ(rdma::parse_transports("auto", "--transports")->kinds.size(), 3U);
  const auto named = rdma::parse_transports("tcp,shm", "--transports");
  ASSERT_TRUE(named.has_value());
  EXPECT_FALSE(named->automatic);
  EXPECT_EQ(named->kinds, (std::vector<TransportKind>{TransportKind::kTcp, TransportKind::kShm}));
  for (const char* text : {"", "tcp,", "udp", "tcp,tcp", "loop", "tcp shm", "auto,tcp"})
    EXPECT_EQ(rdma::parse_transports(text, "--transports").error().code, ErrorCode::kInvalid)
        << text;
}

NodeSettings valid() {
  NodeSettings settings;
  settings.coordinator = "http://127.0.0.1:7070";
  return settings;
}

TEST(NodeSettings, DefaultsAreValid) {
  EXPECT_TRUE(check(valid()).has_value());
}

// What a node that lends a file refuses, and the piece of the text that says why.
TEST(NodeSettings, FileIsLentAloneAndOverTcpAlone) {
  NodeSettings spill = valid();
  spill.spill = "/var/tmp,size=20G";
  EXPECT_TRUE(check(spill).has_value());
  EXPECT_EQ(transports_of(spill)->kinds, std::vector{TransportKind::kTcp});
  const auto refused = [&](const NodeSettings& settings, const std::string& why) {
    const Status status = check(settings);
    ASSERT_FALSE(status.has_value()) << why;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalid);
    EXPECT_NE(status.error().context.find(why), std::string::npos) << status.error().context;
  };
  NodeSettings both = spill;
  both.lend_bytes = uint64_t{1} << 30;
  refused(both, "--spill: a node lends memory (--lend) or a file, not both");
  NodeSettings huge = spill;
  huge.hugepages = true;
  refused(huge, "omit --hugepages");
  NodeSettings bound = spill;
  bound.numa_node = 0;
  refused(bound, "--numa-node");
  for (const char* named : {"shm", "verbs", "shm,tcp", "tcp,verbs"}) {
    NodeSettings other = spill;
    other.transports = named;
    refused(other, "a file (--spill) is lent over tcp alone");
  }
  NodeSettings tcp = spill;
  tcp.transports = "tcp";
  EXPECT_TRUE(check(tcp).has_value());
  NodeSettings wrong = valid();
  wrong.spill = "/var/tmp";
  refused(wrong, "is not FOLDER,size=SIZE");
}

TEST(NodeSettings, NamesThatNoClusterWouldTakeAreRefused) {
  NodeSettings settings = valid();
  for (const char* name : {"a/b", "..", "a b", "\xc3\xa4"}) {
    settings.name = name;
    const Status refused = check(settings);
    ASSERT_FALSE(refused.has_value()) << name;
    EXPECT_EQ(refused.error().context.find("--name: '"), 0U) << refused.error().context;
  }
  settings.name = "rack-7.node_2";
  EXPECT_TRUE(check(settings).has_value());
}

TEST(NodeSettings, LabelsAreKeysWithValues) {
  EXPECT_EQ(*parse_labels({"zone=a", "rack=7"}),
            (coordinator::Labels{{"zone", "a"}, {"rack", "7"}}));
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"zone"}, {"zone="}, {"=a"}, {"zone=a=b"}, {"zone=a", "zone=b"}}) {
    NodeSettings settings = valid();
    settings.labels = wrong;
    const Status refused = check(settings);
    ASSERT_FALSE(refused.has_value()) << wrong[0];
    EXPECT_EQ(refused.error().context.find("--label: '"), 0U) << refused.error().context;
  }
}

TEST(NodeSettings, ListeningBeyondLoopbackNeedsATokenOrInsecure) {
  NodeSettings settings = valid();
  settings.listen_agent = "0.0.0.0:7071";
  settings.advertise = "10.0.0.2";
  const Status refused = check(settings);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().context.find("--token-file"), std::string::npos);
  settings.insecure = true;
  EXPECT_TRUE(check(settings).has_value());
  settings.insecure = false;
  settings.token_file = "token";
  EXPECT_TRUE(check(settings).has_value());
}

TEST(NodeSettings, WildcardNeedsAnAddressToPublish) {
  NodeSettings settings = valid();
  settings.tcp_listen = "0.0.0.0:7072";
  const Status refused = check(settings);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().context.find("--advertise"), std::string::npos);
  settings.advertise = "10.0.0.2";
  EXPECT_TRUE(check(settings).has_value());
}

TEST(NodeSettings, HeartbeatsWithoutAPauseAreRefused) {
  NodeSettings settings = valid();
  settings.heartbeat_interval = Milliseconds(0);
  const Status refused = check(settings);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().context, "--heartbeat: at least 10 ms");
}

TEST(NodeSettings, EachWrongTextIsRefusedByItsFlag) {
  struct Case {
    std::string NodeSettings::*field;
    const char* value;
    const char* names;
  };
  for (const Case& c : {Case{&NodeSettings::listen_agent, "7071", "--listen-agent"},
                        {&NodeSettings::tcp_listen, "x", "--tcp-listen"},
                        {&NodeSettings::transports, "udp", "--transports"},
                        {&NodeSettings::coordinator, "", "--coordinator"}}) {
    NodeSettings settings = valid();
    settings.*c.field = c.value;
    const Status refused = check(settings);
    ASSERT_FALSE(refused.has_value()) << c.names;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalid);
    EXPECT_EQ(refused.error().context.find(c.names), 0U) << refused.error().context;
  }
}

}  // namespace
}  // namespace farpage::cli
