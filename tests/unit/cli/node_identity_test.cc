#include "cli/node_identity.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "coordinator/api_json.h"

namespace farpage::cli {
namespace {

class NodeIdentityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = ::testing::TempDir() + "farpage-identity-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  Result<NodeIdentity> load(const std::string& name) const {
    return load_identity(directory_ / "state", name);
  }
  std::filesystem::path directory_;
};

TEST_F(NodeIdentityTest, IsMadeOnceForEachNameAndKept) {
  std::string first;
  {
    const auto made = load("n1");
    ASSERT_TRUE(made.has_value()) << made.error().message();
    EXPECT_TRUE(coordinator::is_identity(made->text)) << made->text;
    first = made->text;
    EXPECT_NE(load("n2")->text, first);
  }
  EXPECT_EQ(load("n1")->text, first);
  struct stat file {};
  ASSERT_EQ(::stat((directory_ / "state" / "n1.id").c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777U, 0600U);
}

TEST_F(NodeIdentityTest, IsUsedByOneNodeOfAHostAtATime) {
  const auto first = load("n1");
  const auto second = load("n1");
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
  EXPECT_NE(second.error().context.find("--name"), std::string::npos);
}

TEST_F(NodeIdentityTest, FileWithSomethingElseIsRefusedAndKept) {
  { ASSERT_TRUE(load("n1").has_value()); }
  const std::filesystem::path path = directory_ / "state" / "n1.id";
  for (const char* text :
       {"0123", "\n", "0123456789abcdef0123456789abcdeg", "0123456789abcdef0123456789abcdef0"}) {
    std::ofstream(path, std::ios::trunc) << text;
    const auto refused = load("n1");
    ASSERT_FALSE(refused.has_value()) << text;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalid);
    EXPECT_EQ(std::filesystem::file_size(path), std::string(text).size());
  }
}

TEST_F(NodeIdentityTest, DirectoryThatCannotBeUsedIsNamed) {
  EXPECT_EQ(load_identity("", "n1")->text, "");
  const auto refused = load_identity("/proc/nowhere", "n1");
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().context.find("--state-dir"), std::string::npos);
}

}  // namespace
}  // namespace farpage::cli
