#include "base/sigpipe.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"

namespace farpage {
namespace {

// A socket whose other end is closed: each write raises SIGPIPE, which ends this process.
Fd closed_at_the_other_end() {
  int ends[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Fd other(ends[1]);
  return Fd(ends[0]);
}

bool sigpipe_is(bool (*where)(sigset_t&)) {
  sigset_t set;
  return where(set) && ::sigismember(&set, SIGPIPE) == 1;
}

bool is_blocked() {
  return sigpipe_is([](sigset_t& set) { return ::pthread_sigmask(0, nullptr, &set) == 0; });
}

bool is_pending() {
  return sigpipe_is([](sigset_t& set) { return ::sigpending(&set) == 0; });
}

TEST(Sigpipe, HeldBackIsAnErrorAndLeavesNothing) {
  const Fd socket = closed_at_the_other_end();
  {
    const SigpipeHeldBack held_back;
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(::write(socket.get(), "x", 1), -1);
      EXPECT_EQ(errno, EPIPE);
    }
    EXPECT_TRUE(is_pending());
  }
  EXPECT_FALSE(is_pending());
  EXPECT_FALSE(is_blocked());
}

TEST(Sigpipe, OneThatWaitsAlreadyIsLeft) {
  sigset_t sigpipe;
  ::sigemptyset(&sigpipe);
  ::sigaddset(&sigpipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &sigpipe, nullptr);
  const Fd socket = closed_at_the_other_end();
  EXPECT_EQ(::write(socket.get(), "x", 1), -1);
  { const SigpipeHeldBack held_back; }
  EXPECT_TRUE(is_pending());
  EXPECT_TRUE(is_blocked());
  const timespec now{};
  EXPECT_EQ(::sigtimedwait(&sigpipe, nullptr, &now), SIGPIPE);
  ::pthread_sigmask(SIG_UNBLOCK, &sigpipe, nullptr);
}

}  // namespace
}  // namespace farpage
