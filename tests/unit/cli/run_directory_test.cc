#include "cli/run_directory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace farpage::cli {
namespace {

namespace fs = std::filesystem;

class RunDirectoryTest : public testing::Test {
 protected:
  RunDirectoryTest() : place_(testing::TempDir() + fmt::format("farpage-place-{}", ::getpid())) {
    fs::create_directory(place_);
    if (const char* before = std::getenv("XDG_RUNTIME_DIR")) before_ = before;
    ::setenv("XDG_RUNTIME_DIR", place_.c_str(), 1);
  }
  ~RunDirectoryTest() override {
    if (before_) {
      ::setenv("XDG_RUNTIME_DIR", before_->c_str(), 1);
    } else {
      ::unsetenv("XDG_RUNTIME_DIR");
    }
    fs::remove_all(place_);
  }

  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(place_), {}));
  }
  // Creates a directory in a process that is then killed.
  void leave_behind() const {
    int made[2];
    ASSERT_EQ(::pipe(made), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const Result<RunDirectory> directory = RunDirectory::create();
      const char result = directory ? 'y' : 'n';
      (void)!::write(made[1], &result, 1);
      ::pause();
    }
    ::close(made[1]);
    char result = 0;
    EXPECT_EQ(::read(made[0], &result, 1), 1);
    EXPECT_EQ(result, 'y');
    ::kill(child, SIGKILL);
    EXPECT_EQ(::waitpid(child, nullptr, 0), child);
    ::close(made[0]);
  }

  std::string place_;
  std::optional<std::string> before_;
};

TEST_F(RunDirectoryTest, IsGoneWithTheObject) {
  {
    const Result<RunDirectory> directory = RunDirectory::create();
    ASSERT_TRUE(directory) << directory.error().message();
    EXPECT_EQ(entries(), 1U);
    EXPECT_TRUE(fs::exists(fs::path(directory->socket_path()).parent_path()));
  }
  EXPECT_EQ(entries(), 0U);
}

TEST_F(RunDirectoryTest, TheNextOneRemovesWhatAKilledProcessLeftAndNothingElse) {
  leave_behind();
  EXPECT_EQ(entries(), 1U);
  fs::create_directories(place_ + "/farpage-run-results/of-the-user");
  const Result<RunDirectory> first = RunDirectory::create();
  ASSERT_TRUE(first);
  EXPECT_EQ(entries(), 2U);
  const Result<RunDirectory> second = RunDirectory::create();
  ASSERT_TRUE(second);
  EXPECT_EQ(entries(), 3U);
  EXPECT_TRUE(fs::exists(fs::path(first->socket_path()).parent_path()));
}

TEST_F(RunDirectoryTest, AllProcessesAtOnceEachGetTheirs) {
  constexpr int kProcesses = 8;
  constexpr int kRounds = 50;
  for (int i = 0; i < kProcesses; ++i) {
    if (::fork() != 0) continue;
    bool good = true;
    for (int round = 0; round < kRounds && good; ++round) {
      const Result<RunDirectory> directory = RunDirectory::create();
      good = directory && fs::exists(fs::path(directory->socket_path()).parent_path());
    }
    ::_exit(good ? 0 : 1);
  }
  for (int i = 0; i < kProcesses; ++i) {
    int status = -1;
    ASSERT_GT(::wait(&status), 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(entries(), 0U);
}

}  // namespace
}  // namespace farpage::cli
