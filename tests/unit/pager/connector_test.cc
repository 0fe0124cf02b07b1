#include "pager/links/connector.h"

#include <gtest/gtest.h>

#include <deque>

#include "rdma/session.h"
#include "target_rig.h"

namespace farpage::pager {
namespace {

using Lines = std::vector<std::string>;

// What the connector asked a transport for.
struct ConnectCall {
  rdma::TransportKind kind;
  std::string host;
  std::span<std::byte> buffer;
  uint64_t session = 0;
  Instant at{0};
};

// Of all transports, in order. Threads: any.
class ConnectCalls {
 public:
  void add(const ConnectCall& call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(call);
  }
  std::vector<ConnectCall> all() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  std::vector<ConnectCall> of(rdma::TransportKind kind) const {
    std::vector<ConnectCall> calls = all();
    std::erase_if(calls, [&](const ConnectCall& call) { return call.kind != kind; });
    return calls;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<ConnectCall> calls_;  // guarded by mutex_
};

// A transport that fails as the test says. Its channels are those of FakeNode. Threads: any.
class FakeTransport final : public rdma::Transport {
 public:
  FakeTransport(rdma::TransportKind kind, FakeNode& node, ConnectCalls& calls)
      : kind_(kind), node_(node), calls_(calls) {}

  // From now on it does not answer.
  void let_die(const std::string& host) {
    const std::lock_guard lock(mutex_);
    dead_ = host;
  }
  // The next calls fail. -1: all.
  void fail_next(int calls, ErrorCode code = ErrorCode::kUnavailable) {
    const std::lock_guard lock(mutex_);
    failures_ = calls;
    code_ = code;
  }
  std::vector<ConnectCall> calls() const { return calls_.of(kind_); }

  rdma::TransportKind kind() const override { return kind_; }
  Result<std::unique_ptr<rdma::Channel>> connect(const rdma::TransportAddress& address,
                                                 const rdma::ChannelOptions& options,
                                                 const rdma::QueuePairExchange&) override {
    const std::lock_guard lock(mutex_);
    const Instant now = SteadyClock::read();
    calls_.add({kind_, address.text, options.buffer, options.session, now});
    if (address.text == dead_) return fail(code_, "the node does not answer");
    if (failures_ == 0) return node_.connect();
    if (failures_ > 0) --failures_;
    return fail(code_, "the test says no");
  }

 private:
  const rdma::TransportKind kind_;
  FakeNode& node_;
  ConnectCalls& calls_;
  std::mutex mutex_;
  // Guarded by mutex_:
  int failures_ = 0;
  ErrorCode code_ = ErrorCode::kUnavailable;
  std::string dead_;
};

// Two transports, two nodes that the connector knows, two ports. The connector runs from start()
// on.
class ConnectorRig : public TargetRig {
 public:
  ConnectorRig() : TargetRig({.nodes = 2}) {
    for (const rdma::TransportKind kind : {rdma::TransportKind::kShm, rdma::TransportKind::kTcp}) {
      auto transport = std::make_unique<FakeTransport>(kind, node(0), calls);
      (kind == rdma::TransportKind::kShm ? shm : tcp) = transport.get();
      transports.push_back(std::move(transport));
    }
    for (const char* name : {"n0", "n1"}) offer(name, {shm->kind(), tcp->kind()});
  }
  // What the node publishes.
  void offer(const std::string& name, const std::vector<rdma::TransportKind>& kinds) {
    coordinator::NodeInfo info;
    info.join.id = NodeId{name};
    for (const rdma::TransportKind kind : kinds)
      info.join.transports.push_back({.kind = kind, .text = name});
    ASSERT_TRUE(engine.nodes->put(info));
  }
  void start() {
    connector =
        std::make_unique<Connector>(engine.connector_parts(), client, transports,
                                    std::vector{port.get(), second_port.get()}, connector_bell);
  }
  // As the owner of the port, who needs the node.
  rdma::Channel* await_channel(LinkPort& of, uint16_t node = 0) {
    rdma::Channel* channel = nullptr;
    EXPECT_TRUE(becomes_true([&] { return (channel = of.channel(NodeIndex{node})) != nullptr; }));
    return channel;
  }
  uint64_t connected_by(const FakeTransport& transport) const {
    return engine.link_counts.connected_by_kind[static_cast<size_t>(transport.kind())];
  }

  std::array<std::byte, 64> buffer{};
  std::array<std::byte, 64> second_buffer{};
  std::unique_ptr<LinkPort> port = std::make_unique<LinkPort>(
      "first", buffer, rdma::new_session(9), std::move(*LinkPort::Links::create()), connector_bell);
  std::unique_ptr<LinkPort> second_port =
      std::make_unique<LinkPort>("second", second_buffer, rdma::new_session(9),
                                 std::move(*LinkPort::Links::create()), connector_bell);
  ConnectCalls calls;
  std::vector<std::unique_ptr<rdma::Transport>> transports;
  FakeTransport* shm = nullptr;
  FakeTransport* tcp = nullptr;
  std::unique_ptr<Connector> connector;

  ~ConnectorRig() {
    engine.stopping = true;
    connector.reset();
  }
};

TEST(Connector, ConnectsWhatAPortWantsByTheFirstTransport) {
  ConnectorRig rig;
  EXPECT_EQ(rig.port->channel(NodeIndex{0}), nullptr);
  EXPECT_EQ(rig.port->channel(NodeIndex{1}), nullptr);
  rig.start();
  ASSERT_NE(rig.await_channel(*rig.port, 0), nullptr);
  ASSERT_NE(rig.await_channel(*rig.port, 1), nullptr);
  const std::vector<ConnectCall> calls = rig.shm->calls();
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].host, "n0");
  EXPECT_EQ(calls[1].host, "n1");
  EXPECT_TRUE(rig.tcp->calls().empty());
  EXPECT_EQ(rig.connected_by(*rig.shm), 2U);
  EXPECT_EQ(rig.second_port->channel(NodeIndex{0}), nullptr) << "it had not asked";
}

TEST(Connector, IsWokenByAPort) {
  ConnectorRig rig;
  rig.start();
  EXPECT_NE(rig.await_channel(*rig.second_port), nullptr);
}

TEST(Connector, EachPortHasItsBufferAndItsSession) {
  ConnectorRig rig;
  rig.start();
  ASSERT_NE(rig.await_channel(*rig.port), nullptr);
  ASSERT_NE(rig.await_channel(*rig.second_port), nullptr);
  const std::vector<ConnectCall> calls = rig.shm->calls();
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].buffer.data(), rig.buffer.data());
  EXPECT_EQ(calls[1].buffer.data(), rig.second_buffer.data());
  EXPECT_EQ(calls[0].session, rig.port->session());
  EXPECT_EQ(calls[1].session, rig.second_port->session());
  EXPECT_NE(calls[0].session, calls[1].session);
}

TEST(Connector, ABrokenChannelIsReplacedInTheSameSession) {
  ConnectorRig rig;
  rig.start();
  ASSERT_NE(rig.await_channel(*rig.port), nullptr);
  rig.node().break_channels();
  ASSERT_NE(rig.await_channel(*rig.port), nullptr);
  const std::vector<ConnectCall> calls = rig.shm->calls();
  ASSERT_EQ(calls.size(), 2U);
  // Else late WRITEs of the first channel would have an effect.
  EXPECT_EQ(calls[0].session, rig.port->session());
  EXPECT_EQ(calls[1].session, rig.port->session());
  EXPECT_EQ(rig.engine.link_counts.channels_broken, 1U);
  EXPECT_EQ(rig.engine.link_counts.channels_connected, 2U);
  EXPECT_EQ(rig.port->take_retired(NodeIndex{0}), nullptr) << "the connector destroys it";
}

TEST(Connector, WhereOneTransportFailsTheNextIsTried) {
  ConnectorRig rig;
  rig.shm->fail_next(-1);
  rig.start();
  ASSERT_NE(rig.await_channel(*rig.port), nullptr);
  EXPECT_EQ(rig.shm->calls().size(), 1U);
  EXPECT_EQ(rig.connected_by(*rig.tcp), 1U);
  EXPECT_EQ(rig.engine.link_counts.transport_fallbacks, 1U);
}

TEST(Connector, ATransportThatCannotReachTheNodeIsNoFallback) {
  ConnectorRig rig;
  rig.shm->fail_next(-1, ErrorCode::kUnsupported);
  rig.offer("n1", {rdma::TransportKind::kTcp});
  rig.start();
  ASSERT_NE(rig.await_channel(*rig.port, 0), nullptr);
  ASSERT_NE(rig.await_channel(*rig.port, 1), nullptr);
  EXPECT_EQ(rig.shm->calls().size(), 1U) << "the second node does not offer it";
  EXPECT_EQ(rig.connected_by(*rig.tcp), 2U);
  EXPECT_EQ(rig.engine.link_counts.transport_fallbacks, 0U);
}

TEST(Connector, ANodeThatDoesNotAnswerDelaysAnotherOneByOneAttempt) {
  ConnectorRig rig;
  rig.shm->let_die("n0");
  rig.tcp->let_die("n0");
  EXPECT_EQ(rig.port->channel(NodeIndex{0}), nullptr);
  EXPECT_EQ(rig.second_port->channel(NodeIndex{0}), nullptr);
  EXPECT_EQ(rig.second_port->channel(NodeIndex{1}), nullptr);
  rig.start();
  ASSERT_NE(rig.await_channel(*rig.second_port, 1), nullptr);
  const std::vector<ConnectCall> calls = rig.shm->calls();
  EXPECT_EQ(calls[0].host, "n0");
  EXPECT_EQ(calls[1].host, "n1") << "not the second port to the same node";
  ASSERT_TRUE(becomes_true([&] { return rig.shm->calls().size() > 4; })) << "both are tried again";
  EXPECT_NE(rig.engine.unreachable_for(NodeIndex{0}), Nanoseconds(0));
}

TEST(Connector, BetweenItsAttemptsThePauseDoubles) {
  ConnectorRig rig;
  constexpr int kFailures = 5;
  rig.shm->fail_next(kFailures);
  rig.tcp->fail_next(kFailures);
  rig.start();
  ASSERT_NE(rig.await_channel(*rig.port), nullptr);
  const std::vector<ConnectCall> shm = rig.shm->calls();
  const std::vector<ConnectCall> tcp = rig.tcp->calls();
  ASSERT_EQ(shm.size(), kFailures + 1U);
  ASSERT_EQ(tcp.size(), size_t{kFailures});
  Nanoseconds least = Milliseconds(5);
  for (size_t i = 0; i < kFailures; ++i, least *= 2)
    EXPECT_GE(shm[i + 1].at - tcp[i].at, least) << "after attempt " << i;
}

TEST(Connector, AfterASuccessThePauseIsShortAgain) {
  ConnectorRig rig;
  rig.shm->fail_next(6);  // 5 to 160 ms
  rig.tcp->fail_next(6);
  rig.start();
  ASSERT_NE(rig.await_channel(*rig.port), nullptr);
  // A pause of 5 ms may take longer on a busy machine, but not each time as long as the next one
  // of the series.
  const auto pauses_shortly = [&] {
    rig.shm->fail_next(1);
    rig.tcp->fail_next(1);
    rig.node().break_channels();
    if (rig.await_channel(*rig.port) == nullptr) return false;
    const std::vector<ConnectCall> calls = rig.calls.all();
    return calls.back().at - calls[calls.size() - 2].at < Milliseconds(320);
  };
  EXPECT_TRUE(becomes_true(pauses_shortly));
}

TEST(Connector, ANodeIsOutOfReachFromTheFirstFailureToTheNextSuccess) {
  ConnectorRig rig;
  rig.shm->fail_next(-1);
  rig.tcp->fail_next(-1);
  EXPECT_EQ(rig.engine.unreachable_for(NodeIndex{0}), Nanoseconds(0));
  EXPECT_EQ(rig.port->channel(NodeIndex{0}), nullptr);
  rig.start();
  ASSERT_TRUE(becomes_true([&] { return rig.tcp->calls().size() >= 3; }));
  const Instant now = SteadyClock::read();
  EXPECT_GE(rig.engine.unreachable_for(NodeIndex{0}), now - rig.tcp->calls()[0].at)
      << "since the first failure";
  EXPECT_EQ(rig.engine.unreachable_for(NodeIndex{1}), Nanoseconds(0));
  rig.shm->fail_next(0);
  ASSERT_NE(rig.await_channel(*rig.port), nullptr);
  EXPECT_EQ(rig.engine.unreachable_for(NodeIndex{0}), Nanoseconds(0));
}

TEST(Connector, AFailureToOneNodeDoesNotDelayAnother) {
  ConnectorRig rig;
  rig.offer("n0", {});
  EXPECT_EQ(rig.port->channel(NodeIndex{0}), nullptr);
  rig.start();
  ASSERT_NE(rig.await_channel(*rig.port, 1), nullptr);
  EXPECT_EQ(rig.port->channel(NodeIndex{0}), nullptr);
  rig.offer("n0", {rdma::TransportKind::kTcp});  // it has come back
  EXPECT_NE(rig.await_channel(*rig.port, 0), nullptr);
}

TEST(Connector, ATransportWhoseChannelsBreakSoonGivesWayToTheNext) {
  ConnectorRig rig;
  rig.start();
  for (int i = 0; i < 3; ++i) {
    ASSERT_NE(rig.await_channel(*rig.port), nullptr);
    EXPECT_EQ(rig.connected_by(*rig.tcp), 0U) << i;
    rig.node().break_channels();
  }
  ASSERT_NE(rig.await_channel(*rig.port), nullptr);
  EXPECT_EQ(rig.connected_by(*rig.shm), 3U);
  EXPECT_EQ(rig.connected_by(*rig.tcp), 1U);
  // Another port has its own experience.
  ASSERT_NE(rig.await_channel(*rig.second_port), nullptr);
  EXPECT_EQ(rig.connected_by(*rig.shm), 4U);
}

TEST(Connector, AChannelThatAPortWillNeedIsThereWhenItAsks) {
  ConnectorRig rig;
  rig.port->request(NodeIndex{1});
  rig.start();
  ASSERT_TRUE(becomes_true([&] { return !rig.port->wants(NodeIndex{1}); }));
  EXPECT_NE(rig.port->channel(NodeIndex{1}), nullptr);
}

TEST(Connector, EndsWhileANodeCannotBeReached) {
  ConnectorRig rig;
  rig.shm->fail_next(-1);
  rig.tcp->fail_next(-1);
  EXPECT_EQ(rig.port->channel(NodeIndex{0}), nullptr);
  rig.start();
  ASSERT_TRUE(becomes_true([&] { return !rig.tcp->calls().empty(); }));
  rig.engine.stopping = true;
  rig.connector.reset();
  EXPECT_TRUE(rig.port->wants(NodeIndex{0}));
}

}  // namespace
}  // namespace farpage::pager
