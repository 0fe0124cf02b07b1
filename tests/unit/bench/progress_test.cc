#include "bench/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "base/fd.h"

namespace farpage::bench {
namespace {

TEST(Progress, TextSaysHowMuchHowFastAndHowLong) {
  EXPECT_EQ(progress_text("fault", {.operations = 100'000}, 12'000, Seconds(3)),
            "fault: 12000 of 100000 (12 %), 4000/s, 22 s left");
  EXPECT_EQ(progress_text("read", {.time = Seconds(10)}, 500, Seconds(4)),
            "read: 500, 125/s, 6 s left");
}

TEST(Progress, TextKnowsNoTimeLeftWhenNothingIsDone) {
  EXPECT_EQ(progress_text("fault", {.operations = 10}, 0, Seconds(3)), "fault: 0 of 10 (0 %), 0/s");
  EXPECT_EQ(progress_text("fault", {.operations = 10}, 0, Seconds(0)), "fault: 0 of 10 (0 %), 0/s");
  EXPECT_EQ(progress_text("fault", {.time = Seconds(2)}, 0, Seconds(3)), "fault: 0, 0/s, 0 s left");
  EXPECT_EQ(progress_text("fault", {.operations = 10}, 12, Seconds(3)),
            "fault: 12 of 10 (120 %), 4/s, 0 s left");
}

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    reader = Fd(ends[0]);
    writer = Fd(ends[1]);
  }
  // Up to the end of file: close the writer first.
  std::string rest() const {
    std::string text;
    std::array<char, 256> bytes;
    for (ssize_t got = 0; (got = ::read(reader.get(), bytes.data(), bytes.size())) > 0;)
      text.append(bytes.data(), static_cast<size_t>(got));
    return text;
  }
  Fd reader, writer;
};

TEST(Progress, LineIsRewrittenAndGoneAtTheEnd) {
  Pipe pipe;
  std::atomic<int> looks{0};
  {
    const Progress progress({.shown = true,
                             .fd = pipe.writer.get(),
                             .silence = Nanoseconds(0),
                             .interval = Milliseconds(1)},
                            "fault", {.operations = 7},
                            [&looks] { return static_cast<uint64_t>(++looks); });
    while (looks < 3) std::this_thread::yield();
  }
  pipe.writer = Fd();
  const std::string text = pipe.rest();
  EXPECT_EQ(text.rfind("\r\x1b[Kfault: 1 of 7 (14 %)", 0), 0U) << text;
  EXPECT_NE(text.find("\r\x1b[Kfault: 2 of 7 (28 %)"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("\r\x1b[K")) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

TEST(Progress, SaysNothingUnlessItIsShownAndTheRunIsLong) {
  Pipe pipe;
  const auto never = []() -> uint64_t {
    ADD_FAILURE();
    return 0;
  };
  {
    const Progress hidden({.shown = false, .fd = pipe.writer.get(), .silence = Nanoseconds(0)},
                          "fault", {.operations = 7}, never);
    const Progress quick({.shown = true, .fd = pipe.writer.get(), .silence = Seconds(3600)},
                         "fault", {.operations = 7}, never);
  }
  pipe.writer = Fd();
  EXPECT_EQ(pipe.rest(), "");
}

}  // namespace
}  // namespace farpage::bench
