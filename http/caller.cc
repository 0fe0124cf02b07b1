#include "http/caller.h"

#include <fmt/format.h>
#include <httplib.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <vector>

#include "base/mutex.h"
#include "base/sigpipe.h"
#include "http/problem.h"

namespace farpage::http {
namespace {

constexpr size_t kMaxIdle = 4;  // connections of a caller
// A request on a kept connection to a machine that is off meanwhile fails after this time.
constexpr unsigned kUnacknowledgedMs = 1500;

Error transport_error(const Url& server, httplib::Error error) {
  const std::string who = to_text(server);
  switch (error) {
    case httplib::Error::Connection:
    case httplib::Error::BindIPAddress:
      return Error{ErrorCode::kUnavailable, who + " does not answer: is it running, and reachable?",
                   0};
    case httplib::Error::ConnectionTimeout:
      return Error{ErrorCode::kUnavailable, who + " does not answer: is it running, and reachable?",
                   ETIMEDOUT};
    case httplib::Error::Canceled:
      return Error{ErrorCode::kIo, who + " sent an answer that is too long", 0};
    default:
      return Error{ErrorCode::kTimedOut, who + " closed the connection, or did not answer in time",
                   0};
  }
}

}  // namespace

// Connections that wait for their next request.
class Caller::Idle {
 public:
  // Null: there is none.
  std::unique_ptr<httplib::Client> take() {
    const MutexLock lock(mutex_);
    const Instant oldest = SteadyClock::read() - kLongestIdle;
    std::erase_if(connections_, [&](const Used& used) { return used.at < oldest; });
    if (connections_.empty()) return nullptr;
    std::unique_ptr<httplib::Client> latest = std::move(connections_.back().client);
    connections_.pop_back();
    return latest;
  }
  void put(std::unique_ptr<httplib::Client> client) {
    if (!client->is_socket_open()) return;
    ::setsockopt(client->socket(), IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnacknowledgedMs,
                 sizeof(kUnacknowledgedMs));
    const MutexLock lock(mutex_);
    if (connections_.size() < kMaxIdle)
      connections_.push_back({std::move(client), SteadyClock::read()});
  }
  // One has failed: the others are no better.
  void clear() {
    const MutexLock lock(mutex_);
    connections_.clear();
  }

 private:
  struct Used {
    std::unique_ptr<httplib::Client> client;
    Instant at;
  };
  Mutex mutex_;
  std::vector<Used> connections_ FARPAGE_GUARDED_BY(mutex_);  // the latest last
};

Caller::Caller(Url server, std::string token, Connections connections)
    : server_(std::move(server)), token_(std::move(token)) {
  if (connections == Connections::kKept) idle_ = std::make_shared<Idle>();
}

Result<std::string> body_of(Answer answer) {
  if (answer.status >= 400) return tl::unexpected(error_of_answer(answer.status, answer.body));
  return std::move(answer.body);
}

Result<Answer> Caller::exchange(const char* method, const std::string& path, std::string body,
                                TimeLimit limit) const {
  try {
    // It looks whether the server has closed a kept connection, and makes a new one then.
    std::unique_ptr<httplib::Client> client = idle_ ? idle_->take() : nullptr;
    if (client == nullptr) client = std::make_unique<httplib::Client>(server_.host, server_.port);
    client->set_connection_timeout(limit.connect);
    client->set_read_timeout(limit.answer);
    client->set_write_timeout(limit.answer);
    client->set_tcp_nodelay(true);
    client->set_keep_alive(idle_ != nullptr);
    client->set_url_encode(false);
    httplib::Request request;
    request.method = method;
    request.path = path;
    request.headers.emplace("Accept-Encoding", "identity");
    if (!token_.empty()) request.headers.emplace("Authorization", "Bearer " + token_);
    if (!body.empty()) {
      request.headers.emplace("Content-Type", "application/json");
      request.body = std::move(body);
    }
    const SigpipeHeldBack held_back;
    Answer answer;
    request.response_handler = [&](const httplib::Response& response) {
      answer.status = response.status;
      return true;
    };
    request.content_receiver = [&](const char* data, size_t length, uint64_t, uint64_t) {
      if (answer.body.size() + length > kMaxAnswerBytes) return false;
      answer.body.append(data, length);
      return true;
    };
    const httplib::Result result = client->send(request);
    if (result) {
      if (idle_) idle_->put(std::move(client));
      answer.status = result->status;
      return answer;
    }
    // httplib does not read trailers, with which some servers end the body of a refusal.
    if (idle_) idle_->clear();
    const bool is_refusal = answer.status >= 400 && result.error() == httplib::Error::Read;
    if (is_refusal) return answer;
    return tl::unexpected(transport_error(server_, result.error()));
  } catch (const std::exception& error) {
    return fail(ErrorCode::kIo, fmt::format("HTTP client: {}", error.what()));
  }
}

Result<std::string> Caller::call(const char* method, const std::string& path, std::string body,
                                 TimeLimit limit) const {
  FARPAGE_TRY(answer, exchange(method, path, std::move(body), limit));
  return body_of(std::move(answer));
}

}  // namespace farpage::http
