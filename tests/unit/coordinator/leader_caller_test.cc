#include "coordinator/leader_caller.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "coordinator/routes.h"
#include "http/server.h"

namespace farpage::coordinator {
namespace {

constexpr char kNowhere[] = "http://127.0.0.1:1";  // nothing listens there

// A coordinator that answers what the test sets.
class OneCoordinator {
 public:
  OneCoordinator() {
    auto server =
        http::Server::create({.threads = 2},
                             {{"GET",
                               "/v1/nodes",
                               {},
                               [this](const http::Request&) {
                                 ++calls;
                                 std::this_thread::sleep_for(delay.load());
                                 const std::lock_guard lock(mutex_);
                                 return reply_;
                               }}},
                             [](const std::string&, const std::string&, int, Nanoseconds) {});
    EXPECT_TRUE(server.has_value());
    server_ = std::move(*server);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(server_->port()); }
  void answer(http::Reply reply) {
    const std::lock_guard lock(mutex_);
    reply_ = std::move(reply);
  }

  std::atomic<int> calls{0};
  std::atomic<Milliseconds> delay{Milliseconds(0)};

 private:
  std::mutex mutex_;
  http::Reply reply_{200, "{}", "application/json", {}};
  std::unique_ptr<http::Server> server_;
};

Result<std::string> call(const LeaderCaller& caller, Milliseconds timeout = Seconds(20)) {
  return caller.call("GET", "/v1/nodes", "", timeout);
}

TEST(LeaderCaller, GoesOnFromOneThatIsNotThereAndRemembersWhoAnswered) {
  OneCoordinator other;
  const auto caller = LeaderCaller::create(std::string(kNowhere) + "," + other.url(), "");
  ASSERT_TRUE(caller.has_value());
  EXPECT_TRUE(call(**caller).has_value());
  EXPECT_TRUE(call(**caller).has_value());
  EXPECT_EQ(other.calls, 2);
}

TEST(LeaderCaller, GoesToTheOneThatIsNamed) {
  OneCoordinator follower;
  OneCoordinator other;
  OneCoordinator leader;
  follower.answer(not_leading(leader.url()));
  other.answer(not_leading(""));
  const auto caller =
      LeaderCaller::create(follower.url() + "," + other.url() + "," + leader.url(), "");
  EXPECT_EQ(call(**caller), "{}");
  EXPECT_EQ(other.calls, 0);
  EXPECT_EQ(leader.calls, 1);
}

TEST(LeaderCaller, WaitsUntilOneLeads) {
  OneCoordinator one;
  OneCoordinator other;
  one.answer(not_leading(""));
  other.answer(not_leading("http://elsewhere:7070"));
  const auto caller = LeaderCaller::create(one.url() + "," + other.url(), "");
  const auto none = call(**caller, Milliseconds(300));
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, ErrorCode::kUnavailable);
  EXPECT_GT(one.calls, 1);
  std::thread elected([&] {
    while (other.calls < 4) std::this_thread::yield();
    other.answer(http::Reply{200, "{}", "application/json", {}});
  });
  EXPECT_TRUE(call(**caller).has_value());
  elected.join();
}

TEST(LeaderCaller, ARefusalOfTheLeaderIsTheAnswer) {
  OneCoordinator leader;
  OneCoordinator other;
  leader.answer(http::problem_reply(Error{ErrorCode::kUnavailable, "the node is away", 0}));
  const auto caller = LeaderCaller::create(leader.url() + "," + other.url(), "");
  EXPECT_EQ(call(**caller).error().context, "the node is away");
  EXPECT_EQ(other.calls, 0);
}

TEST(LeaderCaller, WhatMayBeExecutedIsNotSentTwice) {
  OneCoordinator stopped;
  OneCoordinator other;
  stopped.delay = Milliseconds(400);
  const auto caller = LeaderCaller::create(stopped.url() + "," + other.url(), "");
  const auto lost = call(**caller, Milliseconds(200));
  ASSERT_FALSE(lost.has_value());
  EXPECT_EQ(lost.error().code, ErrorCode::kTimedOut);
  EXPECT_EQ(other.calls, 0);
  EXPECT_TRUE(call(**caller).has_value());  // asks the other one first
  EXPECT_EQ(other.calls, 1);
}

TEST(LeaderCaller, ListsThatAreNoneAreRefused) {
  for (const char* urls : {"", "http://a:1,", "a:1", "http://a:1,http://a:1"})
    EXPECT_FALSE(LeaderCaller::create(urls, "").has_value()) << urls;
}

}  // namespace
}  // namespace farpage::coordinator
