#include "serve/pager_session.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <thread>

#include "serve/pager_messages.h"

namespace farpage::serve {
namespace {

// The pager's end of a session, one line at a time.
class PagerEnd {
 public:
  explicit PagerEnd(Fd socket) : socket_(std::move(socket)) {}

  std::string read_line() {
    size_t end = 0;
    while ((end = received_.find('\n')) == std::string::npos) {
      std::array<char, 4096> chunk;
      const ssize_t got = ::recv(socket_.get(), chunk.data(), chunk.size(), 0);
      if (got <= 0) return {};
      received_.append(chunk.data(), static_cast<size_t>(got));
    }
    std::string line = received_.substr(0, end);
    received_.erase(0, end + 1);
    return line;
  }
  void send(const std::string& text) const {
    EXPECT_EQ(::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }

 private:
  Fd socket_;
  std::string received_;
};

struct Ends {
  PagerSession session;
  PagerEnd pager;
};

Ends make_ends() {
  std::array<int, 2> pair{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  return {PagerSession::over(Fd(pair[0])), PagerEnd(Fd(pair[1]))};
}

TEST(PagerSession, AsksAgainWhereTheEngineThatHasReadTheQuestionDies) {
  Ends ends = make_ends();
  std::jthread engine([&pager = ends.pager] {
    EXPECT_TRUE(request_from_line(pager.read_line()));  // and dies
    EXPECT_TRUE(request_from_line(pager.read_line()));
    pager.send(to_line(PagerStatus{.engine = 2, .binary = "b", .local_bytes = 1, .runs = {}}));
  });
  const auto status = ends.session.status();
  ASSERT_TRUE(status) << status.error().message();
  EXPECT_EQ(status->engine, 2);
}

TEST(PagerSession, IgnoresAnswersToQuestionsThatWereAskedTwice) {
  Ends ends = make_ends();
  ends.pager.send(accepted_line() + to_line(PagerStatus{}) +
                  to_line(RunReport{.text = "text", .json = "{}", .memory = {}}));
  const auto report = ends.session.finish(0);
  ASSERT_TRUE(report) << report.error().message();
  EXPECT_EQ(report->text, "text");
}

TEST(PagerSession, TheEndOfThePagerEndsACall) {
  Ends ends = make_ends();
  std::jthread engine([pager = std::move(ends.pager)]() mutable { (void)pager.read_line(); });
  EXPECT_EQ(ends.session.status().error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace farpage::serve
