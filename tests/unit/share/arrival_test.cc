#include "share/arrival.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "share/message.h"
#include "unix_message.h"

namespace farpage::share {
namespace {

constexpr Instant kStart{0};

struct Ends {
  Ends() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    process = Fd(ends[0]);
    arrival.emplace(Fd(ends[1]), ucred{}, kStart);
  }
  void send(std::string_view text, const std::vector<int>& descriptors = {}) const {
    test::send_with(process, text.data(), text.size(), descriptors);
  }
  ErrorCode error(Instant now = kStart) {
    const Result<bool> read = arrival->read(now);
    EXPECT_FALSE(read.has_value());
    return read ? ErrorCode::kIo : read.error().code;
  }
  Fd process;
  std::optional<Arrival> arrival;
};

TEST(Arrival, LineAndItsDescriptorsComeInParts) {
  Ends ends;
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(*ends.arrival->read(kStart), false);
  ends.send("[{", {null.get(), null.get()});
  EXPECT_EQ(*ends.arrival->read(kStart), false);
  ends.send("}]", {null.get()});
  EXPECT_EQ(*ends.arrival->read(kStart), false);
  ends.send("\n");
  EXPECT_EQ(*ends.arrival->read(kStart), true);
  EXPECT_EQ(ends.arrival->line(), "[{}]");
  EXPECT_EQ(ends.arrival->take_descriptors().size(), 3U);
}

TEST(Arrival, WhatDoesNotEndInTimeIsTooLate) {
  Ends ends;
  ends.send("[");
  EXPECT_EQ(*ends.arrival->read(kStart + Arrival::kPatience - Milliseconds(1)), false);
  EXPECT_EQ(ends.error(kStart + Arrival::kPatience), ErrorCode::kTimedOut);
}

TEST(Arrival, EndsAndExcessesAreErrors) {
  {
    Ends ends;
    ends.process.reset();
    EXPECT_EQ(ends.error(), ErrorCode::kUnavailable);
  }
  {
    Ends ends;
    ends.send("[]\n[]");
    EXPECT_EQ(ends.error(), ErrorCode::kInvalid);
  }
  {
    Ends ends;
    ends.send(std::string(kMaxMessageBytes + 1, ' '));
    EXPECT_EQ(ends.error(), ErrorCode::kExhausted);
  }
  {
    Ends ends;
    const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (size_t i = 0; i < 1 + kMaxMemories + 1; ++i) ends.send(" ", {null.get()});
    EXPECT_EQ(ends.error(), ErrorCode::kExhausted);
  }
}

}  // namespace
}  // namespace farpage::share
