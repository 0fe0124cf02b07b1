// A thread of ours comes into a program that runs, and leaves it as it was.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "inject/injected_agent.h"
#include "taken_program.h"

namespace farpage::test {
namespace {

class Injection : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = why_no_injection()) GTEST_SKIP() << *why;
  }
};

TEST_F(Injection, LeavesTheMappingsByteForByteAHundredTimes) {
  TakenProgram program;
  for (const char* kind : {"compute", "futex", "poll", "nanosleep"})
    ASSERT_EQ(program.ask(std::string("thread ") + kind), "ok");
  program.await_call(SYS_read);
  const std::string maps = program.maps();
  const std::string descriptors = program.descriptors();
  std::vector<double> stood_us;
  for (int i = 0; i < 100; ++i) {
    const inject::InjectedAgent& agent = program.inject();
    stood_us.push_back(static_cast<double>(agent.stood.count()) / 1000);
    ASSERT_NE(program.maps(), maps);
    ASSERT_EQ(program.descriptors(), descriptors);
    program.withdraw();
    ASSERT_EQ(program.maps(), maps) << "round " << i;
  }
  std::sort(stood_us.begin(), stood_us.end());
  std::printf("a thread stood for %.0f us (median), %.0f us (most)\n", stood_us[50],
              stood_us.back());
  const uint64_t rounds = program.ask_number("rounds");
  while (program.ask_number("rounds") == rounds) {
  }
  EXPECT_EQ(program.process().finish().exit_status, 7);
}

}  // namespace
}  // namespace farpage::test
