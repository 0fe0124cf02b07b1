#include "snapshot/lifeline.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

namespace farpage::snapshot {
namespace {

// A process that waits for its end, in place of a VMM.
class LifelineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    vmm_ = ::fork();
    ASSERT_GE(vmm_, 0);
    if (vmm_ == 0)
      while (true) ::pause();
    pidfd_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, vmm_, 0)));
    ASSERT_TRUE(pidfd_.valid());
    userfaultfd_ = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  // The signal that has ended it, SIGTERM at the latest.
  int signal_of_end() {
    (void)::kill(vmm_, SIGTERM);
    int status = 0;
    EXPECT_EQ(::waitpid(vmm_, &status, 0), vmm_);
    return WTERMSIG(status);
  }
  Lifeline made() { return std::move(*Lifeline::create(userfaultfd_.get())); }

  pid_t vmm_ = -1;
  Fd pidfd_;
  Fd userfaultfd_;
};

TEST_F(LifelineTest, ProcessIsKilledWhenTheLastTableOfDescriptorsGoes) {
  const pid_t pager = ::fork();
  ASSERT_GE(pager, 0);
  if (pager == 0) {
    const Lifeline lifeline = made();
    if (lifeline.tie(pidfd_.get(), vmm_)) (void)::kill(::getpid(), SIGKILL);
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pager, &status, 0), pager);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(signal_of_end(), SIGKILL);
}

TEST_F(LifelineTest, SuccessorTiesWhatIsTiedAlready) {
  const pid_t pager = ::fork();
  ASSERT_GE(pager, 0);
  if (pager == 0) {
    std::optional<Lifeline> lifeline = made();
    const bool tied = lifeline->tie(pidfd_.get(), vmm_) && lifeline->tie(pidfd_.get(), vmm_);
    if (tied) (void)::kill(::getpid(), SIGKILL);
    ::_exit(1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pager, &status, 0), pager);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(signal_of_end(), SIGKILL);
}

TEST_F(LifelineTest, ItsEndLetsTheProcessLive) {
  {
    const Lifeline lifeline = made();
    ASSERT_TRUE(lifeline.tie(pidfd_.get(), vmm_).has_value());
  }
  EXPECT_EQ(signal_of_end(), SIGTERM);
}

TEST_F(LifelineTest, BeforeItIsTiedItsDescriptorsMayBeClosedInAnyOrder) {
  {
    Lifeline lifeline = made();
    // Of a dead engine, which are in no record (serve/holder.cc): others than those of `lifeline`.
    std::array<int, Lifeline::kDescriptors> descriptors = lifeline.descriptors();
    for (int& descriptor : descriptors) descriptor = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    lifeline = made();
    for (const int descriptor : descriptors) ::close(descriptor);
  }
  EXPECT_EQ(signal_of_end(), SIGTERM);
}

TEST_F(LifelineTest, ProcessThatHasEndedIsNotMistakenForAnother) {
  (void)::kill(vmm_, SIGKILL);
  const Lifeline lifeline = made();
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(vmm_), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(lifeline.tie(pidfd_.get(), vmm_).has_value());
  EXPECT_EQ(signal_of_end(), SIGKILL);
}

}  // namespace
}  // namespace farpage::snapshot
