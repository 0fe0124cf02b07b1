// The server: requests in pieces, replies that come later, clients that go away, stop().
#include "http/server.h"

#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <thread>

#include "base/host.h"
#include "http/caller.h"
#include "tests/unit/http/raw_http.h"

namespace farpage::http {
namespace {

using coordinator::raw_exchange;
using coordinator::raw_request;
using coordinator::raw_send;
using coordinator::raw_send_more;
using coordinator::RawAnswer;
using coordinator::sockets_of_this_process;
using coordinator::threads_of_this_process;

std::string read_all(const Fd& socket) {
  std::string text;
  char buffer[16384];
  while (true) {
    const ssize_t n = ::recv(socket.get(), buffer, sizeof(buffer), 0);
    if (n <= 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

constexpr char kLater[] = "GET /later HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";

class ServerTest : public testing::Test {
 protected:
  void start(ServerOptions options = {}) {
    options.threads = 2;
    std::vector<Route> routes;
    routes.push_back({"GET", "/now", {"word"}, [](const Request& request) {
                        const auto word = request.query.find("word");
                        return Reply{200, word == request.query.end() ? "{}" : word->second};
                      }});
    routes.push_back({"POST",
                      "/echo",
                      {},
                      [](const Request& request) {
                        return Reply{200, request.body};
                      },
                      Body::kJson});
    routes.push_back({"GET", "/throws", {}, [](const Request&) -> Reply {
                        throw std::runtime_error("a handler's failure");
                      }});
    routes.push_back({"GET", "/large", {}, [](const Request&) {
                        return Reply{200, std::string(kLarge, 'x')};
                      }});
    routes.push_back({"GET", "/held", {}, [this](const Request&) {
                        held_.set_value();
                        release_.get_future().wait();
                        return Reply{200, "held"};
                      }});
    Route later{"GET", "/later", {}, nullptr};
    later.later_handler = [this](const Request&, std::shared_ptr<PendingReply> pending) {
      pending->on_gone([this] { ++gone_; });
      const std::lock_guard lock(mutex_);
      pending_.push_back(std::move(pending));
    };
    routes.push_back(std::move(later));
    Route dropped{"GET", "/dropped", {}, nullptr};
    dropped.later_handler = [](const Request&, const std::shared_ptr<PendingReply>&) {};
    routes.push_back(std::move(dropped));
    auto server =
        Server::create(options, std::move(routes),
                       [this](const std::string&, const std::string&, int status, Nanoseconds) {
                         const std::lock_guard lock(mutex_);
                         ++observed_[status];
                       });
    ASSERT_TRUE(server.has_value()) << server.error().message();
    server_ = std::move(*server);
  }
  uint16_t port() const { return server_->port(); }

  void await_pending(size_t count) {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        if (pending_.size() == count) return;
      }
      std::this_thread::sleep_for(Milliseconds(1));
    }
  }
  std::map<int, int> observed() {
    const std::lock_guard lock(mutex_);
    return observed_;
  }

  static constexpr size_t kLarge = size_t{32} << 20;
  std::mutex mutex_;
  std::vector<std::shared_ptr<PendingReply>> pending_;
  std::map<int, int> observed_;
  std::atomic<size_t> gone_{0};
  std::promise<void> held_;
  std::promise<void> release_;
  std::unique_ptr<Server> server_;  // last: its threads use the others
};

TEST_F(ServerTest, ThousandRequestsWaitWithoutAThreadAndAreAnswered) {
  constexpr size_t kWaiting = 1000;
  raise_descriptor_limit();
  start();
  const size_t threads = threads_of_this_process();
  std::vector<Fd> clients;
  for (size_t i = 0; i < kWaiting; ++i) clients.push_back(raw_send(port(), kLater));
  await_pending(kWaiting);
  EXPECT_EQ(threads_of_this_process(), threads);
  EXPECT_EQ(raw_request(port(), "GET", "/now").status, 200) << "others are served";
  for (const auto& pending : pending_) pending->reply(Reply{200, "\"late\""});
  for (const Fd& client : clients) {
    const std::string answer = read_all(client);
    EXPECT_EQ(answer.rfind("HTTP/1.1 200 OK\r\n", 0), 0U) << answer;
    EXPECT_NE(answer.find("\r\n\r\n\"late\""), std::string::npos) << answer;
  }
  EXPECT_EQ(gone_, 0U);
  EXPECT_EQ(observed()[200], static_cast<int>(kWaiting) + 1);
}

TEST_F(ServerTest, AClientThatGoesAwayWhileItsReplyIsLateIsReportedOnce) {
  start();
  Fd client = raw_send(port(), kLater);
  await_pending(1);
  EXPECT_EQ(gone_, 0U);
  client.reset();
  while (gone_ == 0) std::this_thread::sleep_for(Milliseconds(1));
  pending_.front()->reply(Reply{});
  std::promise<void> told;
  pending_.front()->on_gone([&] { told.set_value(); });  // also who asks later
  told.get_future().wait();
  pending_.clear();
  EXPECT_EQ(gone_, 1U);
  EXPECT_EQ(observed().size(), 0U) << "nothing was answered";
}

constexpr char kKept[] = "GET /now HTTP/1.1\r\nHost: test\r\n\r\n";
constexpr char kLast[] = "GET /now HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";

// So many bytes as one answer to kKept has.
std::string read_one(const Fd& socket, size_t bytes) {
  std::string text(bytes, '\0');
  const ssize_t count = ::recv(socket.get(), text.data(), bytes, MSG_WAITALL);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return text;
}

class KeptConnectionTest : public ServerTest {
 protected:
  static constexpr char kAnswer[] =
      "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
  static constexpr size_t kAnswerBytes = sizeof(kAnswer) - 1;
};

TEST_F(KeptConnectionTest, ServesOneRequestAfterTheOther) {
  start();
  const Fd client = raw_send(port(), kKept);
  EXPECT_EQ(read_one(client, kAnswerBytes), kAnswer);
  raw_send_more(client,
                "POST /echo HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
                "Content-Length: 2\r\n\r\n{}");
  EXPECT_EQ(read_one(client, kAnswerBytes), kAnswer);
  raw_send_more(client, kLast);
  EXPECT_NE(read_all(client).find("Connection: close"), std::string::npos);
  EXPECT_EQ(observed()[200], 3);
}

TEST_F(KeptConnectionTest, ServesRequestsThatCameTogetherInTheirOrder) {
  start();
  std::string bytes;
  for (int i = 0; i < 50; ++i)
    bytes +=
        "POST /echo HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        "Content-Length: 3\r\n\r\n" +
        std::to_string(100 + i);
  const std::string all = read_all(raw_send(port(), bytes + kLast));
  size_t at = 0;
  for (int i = 0; i < 50; ++i) {
    at = all.find("\r\n\r\n" + std::to_string(100 + i), at);
    ASSERT_NE(at, std::string::npos) << i;
  }
}

TEST_F(KeptConnectionTest, ARequestBehindOneThatWaitsIsServedAfterIt) {
  start();
  const Fd client = raw_send(port(), "GET /later HTTP/1.1\r\nHost: test\r\n\r\n");
  await_pending(1);
  raw_send_more(client, kLast);
  std::this_thread::sleep_for(Milliseconds(5));
  EXPECT_EQ(gone_, 0U);
  pending_.front()->reply(Reply{200, "{}"});
  EXPECT_EQ(read_one(client, kAnswerBytes), kAnswer);
  EXPECT_NE(read_all(client).find("200 OK"), std::string::npos);
  pending_.front()->on_gone([this] { ++gone_; });
  while (gone_ == 0) std::this_thread::sleep_for(Milliseconds(1));  // the connection has ended
}

TEST_F(KeptConnectionTest, WhoWatchesAnEarlierRequestDoesNotReplaceTheLatest) {
  start();
  Fd client = raw_send(port(), "GET /later HTTP/1.1\r\nHost: test\r\n\r\n");
  await_pending(1);
  pending_.front()->reply(Reply{200, "{}"});
  EXPECT_EQ(read_one(client, kAnswerBytes), kAnswer);
  raw_send_more(client, kLater);
  await_pending(2);
  std::atomic<size_t> of_the_first{0};
  pending_.front()->on_gone([&] { ++of_the_first; });
  EXPECT_EQ(raw_request(port(), "GET", "/now").status, 200);  // the server has heard of it
  client.reset();
  while (gone_ == 0) std::this_thread::sleep_for(Milliseconds(1));
  pending_.clear();
  server_->stop();
  EXPECT_EQ(gone_, 1U);
  EXPECT_EQ(of_the_first, 0U);
}

TEST_F(KeptConnectionTest, IsOnlyKeptForAnOldClientThatAsks) {
  start();
  EXPECT_NE(read_all(raw_send(port(), "GET /now HTTP/1.0\r\n\r\n")).find("Connection: close"),
            std::string::npos);
  const Fd client = raw_send(port(), "GET /now HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  raw_send_more(client, "GET /now HTTP/1.0\r\n\r\n");
  const std::string both = read_all(client);
  EXPECT_NE(both.find("Connection: keep-alive"), std::string::npos);
  EXPECT_NE(both.find("Connection: close"), std::string::npos);
}

TEST_F(KeptConnectionTest, EndsWithARefusal) {
  start();
  const std::string all = read_all(
      raw_send(port(), std::string("GET /nowhere HTTP/1.1\r\nHost: test\r\n\r\n") + kLast));
  EXPECT_NE(all.find("404"), std::string::npos);
  EXPECT_NE(all.find("Connection: close"), std::string::npos);
  EXPECT_EQ(all.find("200 OK"), std::string::npos) << "what was behind it is not served";
}

TEST_F(KeptConnectionTest, EndsWhenNoRequestComes) {
  ServerOptions options;
  options.idle_timeout = Milliseconds(20);
  start(options);
  const Fd client = raw_send(port(), kKept);
  EXPECT_EQ(read_one(client, kAnswerBytes), kAnswer);
  EXPECT_EQ(read_all(client), "");
}

TEST_F(KeptConnectionTest, EndsWhenTheServerStops) {
  start();
  const Fd client = raw_send(port(), kKept);
  EXPECT_EQ(read_one(client, kAnswerBytes), kAnswer);
  server_->stop();
  EXPECT_EQ(read_all(client), "");
}

TEST_F(KeptConnectionTest, OfACallerIsUsedAgainAndReplacedWhenTheServerHasClosedIt) {
  ServerOptions options;
  options.idle_timeout = Milliseconds(500);
  start(options);
  const Caller caller(Url{"127.0.0.1", port()}, "", Connections::kKept);
  const auto call = [&] { return caller.call("GET", "/now", "", Milliseconds(5000)).value_or(""); };
  const size_t before = sockets_of_this_process();
  EXPECT_EQ(call(), "{}");
  EXPECT_EQ(call(), "{}");
  EXPECT_EQ(sockets_of_this_process(), before + 2) << "both ends of one connection";
  while (sockets_of_this_process() > before + 1) std::this_thread::sleep_for(Milliseconds(5));
  EXPECT_EQ(call(), "{}");
  EXPECT_EQ(sockets_of_this_process(), before + 2);
}

TEST_F(KeptConnectionTest, OfACallerIsNotSharedByCallsAtTheSameTime) {
  start();
  const Caller caller(Url{"127.0.0.1", port()}, "", Connections::kKept);
  std::vector<std::future<Result<std::string>>> calls;
  for (size_t i = 0; i < 8; ++i)
    calls.push_back(std::async(
        std::launch::async, [&] { return caller.call("GET", "/later", "", Milliseconds(20000)); }));
  await_pending(8);
  for (const auto& pending : pending_) pending->reply(Reply{200, "{}"});
  for (auto& call : calls) EXPECT_EQ(call.get().value_or(""), "{}");
  EXPECT_EQ(caller.call("GET", "/now", "", Milliseconds(5000)).value_or(""), "{}");
}

TEST_F(ServerTest, StopDropsRequestsThatWaitAndTheirRecordsMayOutliveTheServer) {
  start();
  const Fd client = raw_send(port(), kLater);
  await_pending(1);
  server_->stop();
  EXPECT_EQ(read_all(client), "");
  EXPECT_EQ(gone_, 1U);
  server_.reset();
  pending_.front()->reply(Reply{});
}

TEST_F(ServerTest, OnlyTheFirstOfTwoLateRepliesCounts) {
  start();
  const Fd client = raw_send(port(), kLater);
  await_pending(1);
  pending_.front()->reply(Reply{200, "first"});
  pending_.front()->reply(Reply{500, "second"});
  EXPECT_NE(read_all(client).find("first"), std::string::npos);
}

TEST_F(ServerTest, ARequestWhoseRecordIsDroppedGets500) {
  start();
  const RawAnswer answer = raw_request(port(), "GET", "/dropped");
  EXPECT_EQ(answer.status, 500);
  EXPECT_TRUE(answer.is_problem());
}

TEST_F(ServerTest, AnExceptionOfAHandlerIs500) {
  start();
  const RawAnswer answer = raw_request(port(), "GET", "/throws");
  EXPECT_EQ(answer.status, 500);
  EXPECT_TRUE(answer.is_problem());
  EXPECT_EQ(answer.body.find("a handler's failure"), std::string::npos);
}

TEST_F(ServerTest, StopWaitsForTheHandlerAndItsReplyIsSent) {
  start();
  const Fd client =
      raw_send(port(), "GET /held HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
  held_.get_future().wait();
  auto stopping = std::async(std::launch::async, [this] { server_->stop(); });
  while (true) {  // until no further request is served
    const Fd refused = raw_send(port(), "");
    if (refused.get() < 0) break;
  }
  EXPECT_EQ(stopping.wait_for(Milliseconds(0)), std::future_status::timeout);
  release_.set_value();
  EXPECT_NE(read_all(client).find("held"), std::string::npos);
  stopping.get();
}

TEST_F(ServerTest, AHeadThatDoesNotEndIsDroppedAfterTheTimeout) {
  ServerOptions options;
  options.io_timeout = Milliseconds(50);
  start(options);
  EXPECT_EQ(read_all(raw_send(port(), "GET /now HTTP/1.1\r\nHost:")), "");
}

TEST_F(ServerTest, ABodyThatDoesNotComeIsDroppedAfterTheTimeout) {
  ServerOptions options;
  options.io_timeout = Milliseconds(20);
  start(options);
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n"
      "Content-Length: 10\r\n\r\n";
  EXPECT_EQ(read_all(raw_send(port(), head + "{")), "");
}

TEST_F(ServerTest, ARequestMayComeInPieces) {
  start();
  const std::string request =
      "POST /echo HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n"
      "Content-Length: 5\r\n\r\n\"abc\"";
  const Fd client = raw_send(port(), request.substr(0, 1));
  for (const char byte : request.substr(1)) {
    ASSERT_EQ(::send(client.get(), &byte, 1, MSG_NOSIGNAL), 1);
    std::this_thread::yield();
  }
  EXPECT_NE(read_all(client).find("\r\n\r\n\"abc\""), std::string::npos);
}

TEST_F(ServerTest, ABodyOfTheLargestSizeIsTakenAndOneByteMoreIsNot) {
  start();
  EXPECT_EQ(raw_request(port(), "POST", "/echo", std::string(kMaxBodyBytes, '1')).body.size(),
            kMaxBodyBytes);
  const RawAnswer refused =
      raw_request(port(), "POST", "/echo", std::string(kMaxBodyBytes + 1, '1'));
  EXPECT_EQ(refused.status, 413) << "the answer comes, although the body was not read";
}

TEST_F(ServerTest, AClientThatWaitsForContinueGetsItOnlyIfItsBodyIsWanted) {
  start();
  const auto head = [](const std::string& type) {
    return "POST /echo HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: " + type +
           "\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
  };
  const Fd client = raw_send(port(), head("application/json"));
  char interim[64] = {};
  const std::string expected = "HTTP/1.1 100 Continue\r\n\r\n";
  ASSERT_EQ(::recv(client.get(), interim, expected.size(), MSG_WAITALL),
            static_cast<ssize_t>(expected.size()));
  EXPECT_EQ(interim, expected);
  ASSERT_EQ(::send(client.get(), "{}", 2, MSG_NOSIGNAL), 2);
  EXPECT_NE(read_all(client).find("200 OK"), std::string::npos);
  EXPECT_EQ(raw_exchange(port(), head("text/plain")).status, 415);
}

TEST_F(ServerTest, HeadIsAnsweredAsGetWithoutItsBody) {
  start();
  const RawAnswer answer = raw_request(port(), "HEAD", "/now");
  EXPECT_EQ(answer.status, 200);
  EXPECT_NE(answer.head.find("Content-Length: 2"), std::string::npos) << answer.head;
  EXPECT_EQ(answer.body, "");
  EXPECT_EQ(raw_request(port(), "HEAD", "/nowhere").body, "");
}

TEST_F(ServerTest, AReplyThatIsLargerThanTheSocketsBufferArrivesWhole) {
  start();
  EXPECT_EQ(raw_request(port(), "GET", "/large").body.size(), kLarge);
}

TEST_F(ServerTest, PathsAndQueriesAreDecoded) {
  start();
  EXPECT_EQ(raw_request(port(), "GET", "/n%6fw?word=a%20b+c%3d").body, "a b c=");
  EXPECT_EQ(raw_request(port(), "GET", "/now?word=100%&").body, "100%");
  EXPECT_EQ(raw_request(port(), "GET", "/now?word#part").body, "");
  EXPECT_EQ(raw_request(port(), "GET", "/now?word=1&word=1").status, 400) << "twice";
}

TEST_F(ServerTest, WhatIsNoHttpRequestIsMalformed) {
  start();
  for (const std::string& bytes :
       {std::string("GARBAGE\r\n\r\n"), std::string("GET /now HTTP/9.9\r\n\r\n"),
        std::string("GET /now HTTP/1.1\r\nno colon\r\n\r\n"),
        "GET /now HTTP/1.1\r\nX: " + std::string(kMaxHeadBytes, 'a') + "\r\n\r\n"}) {
    const RawAnswer answer = raw_exchange(port(), bytes);
    EXPECT_EQ(answer.status, 400) << bytes.substr(0, 60);
    EXPECT_TRUE(answer.is_problem()) << bytes.substr(0, 60);
  }
}

}  // namespace
}  // namespace farpage::http
