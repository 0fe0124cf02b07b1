// The floors on the real kernel: every page arrives, whoever installs or sends it.
#include "bench/floors.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "base/cpus.h"
#include "bench/ping_pong.h"

namespace farpage::bench {

void PrintTo(LocalHandler handler, std::ostream* out) {
  *out << (handler == LocalHandler::kBlocked    ? "Blocked"
           : handler == LocalHandler::kSpinning ? "Spinning"
                                                : "Signal");
}

namespace {

constexpr uint64_t kPages = 300;

class FloorWith : public testing::TestWithParam<LocalHandler> {};
INSTANTIATE_TEST_SUITE_P(Handlers, FloorWith,
                         testing::Values(LocalHandler::kBlocked, LocalHandler::kSpinning,
                                         LocalHandler::kSignal),
                         testing::PrintToStringParamName());

// All threads that are created during its lifetime share one CPU.
class OneCpu {
 public:
  OneCpu() { EXPECT_TRUE(run_on(before_.at(0))); }
  ~OneCpu() { EXPECT_TRUE(run_on(before_)); }

 private:
  const std::vector<int> before_ = allowed_cpus();
};

// measure_local_userfault() checks the content of each page.
TEST_P(FloorWith, EveryPageIsInstalled) {
  const Result<Histogram> floor = measure_local_userfault({.pages = kPages}, GetParam());
  ASSERT_TRUE(floor.has_value()) << floor.error().message();
  EXPECT_EQ(floor->count(), kPages);
}

TEST_P(FloorWith, OneCpuIsEnough) {
  const OneCpu one;
  const Result<Histogram> floor =
      measure_local_userfault({.pages = kPages, .pin = true}, GetParam());
  ASSERT_TRUE(floor.has_value()) << floor.error().message();
  EXPECT_EQ(floor->count(), kPages);
}

// measure_tcp_ping_pong() checks each answer.
TEST(PingPong, EveryAnswerComes) {
  for (const auto wait : {PingPongWait::kBlocking, PingPongWait::kSpinning}) {
    for (const bool pin : {false, true}) {
      const Result<Histogram> floor =
          measure_tcp_ping_pong({.iterations = kPages, .pin = pin, .wait = wait});
      ASSERT_TRUE(floor.has_value()) << floor.error().message();
      EXPECT_EQ(floor->count(), kPages);
      EXPECT_GT(floor->percentile_ns(50), 0U);
    }
  }
}

TEST(PingPong, OneCpuIsEnough) {
  const OneCpu one;
  const Result<Histogram> floor =
      measure_tcp_ping_pong({.iterations = kPages, .wait = PingPongWait::kSpinning});
  ASSERT_TRUE(floor.has_value()) << floor.error().message();
  EXPECT_EQ(floor->count(), kPages);
}

TEST(Floor, SignalHandlerOfTheProcessIsBackAfterwards) {
  struct sigaction ours {};
  ours.sa_handler = [](int) {};
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGBUS, &ours, &before), 0);
  ASSERT_TRUE(measure_local_userfault({.pages = kPages}, LocalHandler::kSignal).has_value());
  struct sigaction after {};
  ASSERT_EQ(::sigaction(SIGBUS, &before, &after), 0);
  EXPECT_EQ(after.sa_handler, ours.sa_handler);
}

}  // namespace
}  // namespace farpage::bench
