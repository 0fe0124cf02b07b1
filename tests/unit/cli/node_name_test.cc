#include "cli/node_name.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/host.h"

namespace farpage::cli {
namespace {

class NodeNameTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "farpage-names-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  Result<NodeName> claim(const std::string& wanted = "") const {
    return claim_node_name(wanted, directory_ / "names");
  }
  std::filesystem::path directory_;
};

TEST_F(NodeNameTest, DefaultIsTheHostsNameAndUniqueOnThisHost) {
  const auto first = claim();
  ASSERT_TRUE(first.has_value()) << first.error().message();
  EXPECT_EQ(first->name, host_name());
  const auto second = claim();
  EXPECT_EQ(second->name, host_name() + "-2");
  EXPECT_EQ(claim()->name, host_name() + "-3") << "and free again at once";
  EXPECT_EQ(claim()->name, host_name() + "-3");
}

TEST_F(NodeNameTest, NameOfANodeThatEndedIsFree) {
  { const auto first = claim(); }
  EXPECT_EQ(claim()->name, host_name());
}

TEST_F(NodeNameTest, NameThatWasAskedForIsTakenAsItIs) {
  const auto first = claim();
  EXPECT_EQ(claim(host_name())->name, host_name()) << "the coordinator decides about this one";
  EXPECT_EQ(claim("other")->name, "other");
}

TEST_F(NodeNameTest, TooManyNodesWithoutANameAreToldToTakeOne) {
  std::vector<NodeName> names;
  for (int i = 0; i < 64; ++i) names.push_back(*claim());
  const auto refused = claim();
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().context.find("--name"), std::string::npos);
}

TEST_F(NodeNameTest, DirectoryThatCannotBeUsedCostsTheLockAlone) {
  const auto name = claim_node_name("", "/proc/nowhere");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->name, host_name());
  EXPECT_FALSE(name->lock.valid());
}

}  // namespace
}  // namespace farpage::cli
