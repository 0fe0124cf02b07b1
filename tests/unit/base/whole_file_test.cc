#include "base/whole_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

namespace farpage {
namespace {

class WholeFile : public ::testing::Test {
 protected:
  WholeFile() : folder_(::testing::TempDir() + "whole-file-" + std::to_string(::getpid())) {
    std::filesystem::create_directory(folder_);
  }
  ~WholeFile() override { std::filesystem::remove_all(folder_); }

  Status write(const std::string& text) const {
    return write_whole(path(), std::as_bytes(std::span(text)));
  }
  std::string path() const { return folder_ + "/file"; }
  std::string content() const {
    std::ifstream file(path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  const std::string folder_;
};

TEST_F(WholeFile, ReplacesWhatIsThereAndIsItsOwnersAlone) {
  std::ofstream(path()) << "before";
  std::ofstream(path() + ".next") << "of a process that was killed";
  std::filesystem::permissions(path() + ".next", std::filesystem::perms::all);
  ASSERT_TRUE(write("now").has_value());
  EXPECT_EQ(content(), "now");
  struct stat state {};
  ASSERT_EQ(::stat(path().c_str(), &state), 0);
  EXPECT_EQ(state.st_mode & 0777, 0600U);
  EXPECT_EQ(files(), 1U);
}

TEST_F(WholeFile, AfterAFailureNothingIsLeft) {
  std::filesystem::create_directory(path());  // which no file replaces
  std::ofstream(path() + "/inside") << "x";
  const Status refused = write("now");
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find(path()), std::string::npos);
  EXPECT_EQ(files(), 1U);
}

}  // namespace
}  // namespace farpage
