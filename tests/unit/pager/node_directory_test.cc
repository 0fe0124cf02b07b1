#include "pager/links/node_directory.h"

#include <gtest/gtest.h>

#include "target_rig.h"

#include "pager/options.h"

namespace farpage::pager {
namespace {

coordinator::NodeInfo node_of(uint32_t number) {
  coordinator::NodeInfo node;
  node.join.id = NodeId{"n" + std::to_string(number)};
  return node;
}

TEST(NodeDirectory, NumbersNodesInTheirOrderAndKeepsTheNumbers) {
  NodeDirectory nodes(no_succession());
  EXPECT_EQ(nodes.find(NodeId{"n1"}), std::nullopt);
  EXPECT_EQ(*nodes.put(node_of(1)), NodeIndex{0});
  EXPECT_EQ(*nodes.put(node_of(2)), NodeIndex{1});
  coordinator::NodeInfo moved = node_of(1);
  moved.join.agent_url = "http://elsewhere:7071";
  EXPECT_EQ(*nodes.put(moved), NodeIndex{0});
  EXPECT_EQ(nodes.get(NodeIndex{0}).join.agent_url, "http://elsewhere:7071");
  EXPECT_EQ(nodes.find(NodeId{"n2"}), NodeIndex{1});
  EXPECT_EQ(nodes.size(), 2U);
  EXPECT_EQ(nodes.ids(), (std::vector<NodeId>{{"n1"}, {"n2"}}));
}

TEST(NodeDirectory, KnowsAsManyNodesAsAClusterHasAndRefusesTheNext) {
  NodeDirectory nodes(no_succession());
  for (uint32_t i = 0; i < 4096; ++i) {
    const auto index = nodes.put(node_of(i));
    ASSERT_TRUE(index.has_value()) << index.error().message();
    ASSERT_EQ(index->value, i);
  }
  for (uint32_t i = 0; i < 4096; ++i) {
    ASSERT_EQ(nodes.find(node_of(i).join.id)->value, i);
    ASSERT_EQ(nodes.name_of(NodeIndex{static_cast<uint16_t>(i)}), node_of(i).join.id.value);
  }
  const auto refused = nodes.put(node_of(4096));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kExhausted);
  EXPECT_NE(refused.error().message().find("n4096"), std::string::npos);
  EXPECT_TRUE(nodes.put(node_of(17)).has_value()) << "a known one still gets its addresses";
}

}  // namespace
}  // namespace farpage::pager
