#include "pager/links/link_port.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

namespace farpage::pager {
namespace {

// A channel with nothing but a state.
class StateChannel final : public rdma::Channel {
 public:
  explicit StateChannel(bool& usable) : usable_(usable) {}
  rdma::ChannelLimits limits() const override { return {}; }
  rdma::TransportKind kind() const override { return rdma::TransportKind::kLoop; }
  size_t post(std::span<const rdma::Operation>) override { return 0; }
  size_t poll(std::span<rdma::Completion>) override { return 0; }
  size_t wait(std::span<rdma::Completion>, Nanoseconds) override { return 0; }
  bool usable() const override { return usable_; }
  std::string why_broken() const override { return usable_ ? "" : "told so"; }

 private:
  bool& usable_;
};

struct LinkPortTest : testing::Test {
  Doorbell bell = std::move(*Doorbell::create());
  std::array<std::byte, 64> buffer{};
  LinkPort port{"test", buffer, 0, std::move(*LinkPort::Links::create()), bell};
  const NodeIndex node{5};
};

TEST_F(LinkPortTest, MissingChannelIsAskedForOnce) {
  EXPECT_EQ(port.channel(node), nullptr);
  EXPECT_TRUE(port.wants(node));
  EXPECT_TRUE(bell.wait(Milliseconds(0)));
  EXPECT_EQ(port.channel(node), nullptr);
  EXPECT_FALSE(bell.wait(Milliseconds(0)));
}

TEST_F(LinkPortTest, DeliveredChannelIsTaken) {
  bool usable = true;
  (void)port.channel(node);
  port.deliver(node, std::make_unique<StateChannel>(usable));
  EXPECT_FALSE(port.wants(node));
  EXPECT_NE(port.channel(node), nullptr);
}

// A second one would end the first: both are of one session.
TEST_F(LinkPortTest, ChannelThatArrivesWhileItsOwnerAsksIsNotAskedForAgain) {
  constexpr size_t kRounds = 1000;
  std::vector<std::array<bool, 1>> usable(kRounds + 1, {true});  // of each channel
  std::jthread connector([&](const std::stop_token& stop) {
    for (size_t i = 0; i <= kRounds && !stop.stop_requested();) {
      if (port.wants(node)) {
        port.deliver(node, std::make_unique<StateChannel>(usable[i++][0]));
      } else {
        std::this_thread::yield();
      }
    }
  });
  for (size_t round = 0; round < kRounds; ++round) {
    while (port.channel(node) == nullptr) {
    }
    while (port.wants(node)) std::this_thread::yield();
    usable[round][0] = false;
    ASSERT_EQ(port.channel(node), nullptr) << "another one was delivered, after " << round;
  }
}

TEST_F(LinkPortTest, Defect3BrokenChannelIsReplacedOnlyWhenItsLastCompletionWasTaken) {
  bool first_usable = true;
  bool second_usable = true;
  (void)port.channel(node);
  port.deliver(node, std::make_unique<StateChannel>(first_usable));
  rdma::Channel* first = port.channel(node);
  port.posted(node, 2);
  first_usable = false;
  EXPECT_EQ(port.channel(node), nullptr);
  EXPECT_FALSE(port.wants(node));
  rdma::Channel* visited = nullptr;
  port.for_each_busy_channel([&](NodeIndex, rdma::Channel& channel) { visited = &channel; });
  EXPECT_EQ(visited, first);
  port.completed(node, 2);
  EXPECT_EQ(port.channel(node), nullptr);
  EXPECT_TRUE(port.wants(node));
  port.deliver(node, std::make_unique<StateChannel>(second_usable));
  EXPECT_NE(port.channel(node), nullptr);
}

TEST_F(LinkPortTest, EachBusyChannelIsVisitedOnceAndNoOther) {
  bool usable = true;
  const auto connect = [&](NodeIndex to) {
    port.deliver(to, std::make_unique<StateChannel>(usable));
    ASSERT_NE(port.channel(to), nullptr);
  };
  const std::vector<NodeIndex> nodes{{0}, {63}, {64}, {255}, {256}, {kMaxNodes - 1}};
  for (const NodeIndex each : nodes) {
    connect(each);
    port.posted(each, 2);
  }
  connect(NodeIndex{7});
  port.posted(NodeIndex{7}, 0);
  const auto visited = [&](uint32_t complete) {
    std::vector<NodeIndex> list;
    port.for_each_busy_channel([&](NodeIndex each, rdma::Channel&) {
      list.push_back(each);
      port.completed(each, complete);
    });
    std::sort(list.begin(), list.end());
    return list;
  };
  EXPECT_EQ(visited(0), nodes);
  port.completed(NodeIndex{64}, 2);
  port.completed(NodeIndex{kMaxNodes - 1}, 1);
  EXPECT_EQ(visited(1), (std::vector<NodeIndex>{{0}, {63}, {255}, {256}, {kMaxNodes - 1}}));
  EXPECT_EQ(visited(1), (std::vector<NodeIndex>{{0}, {63}, {255}, {256}}));
  EXPECT_EQ(visited(0), std::vector<NodeIndex>());
  port.posted(NodeIndex{64}, 1);
  EXPECT_EQ(visited(1), std::vector<NodeIndex>{{64}});
}

TEST_F(LinkPortTest, ChannelNobodyTookIsDestroyedWithThePort) {
  bool usable = true;
  (void)port.channel(node);
  port.deliver(node, std::make_unique<StateChannel>(usable));  // a leak checker does the rest
  EXPECT_FALSE(port.wants(node));
}

}  // namespace
}  // namespace farpage::pager
