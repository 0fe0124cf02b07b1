#include "http/caller.h"

#include <fmt/format.h>
#include <httplib.h>

#include <cerrno>

#include "http/problem.h"

namespace farpage::http {
namespace {

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

Result<std::string> body_of(Answer answer) {
  if (answer.status >= 400) return tl::unexpected(error_of_answer(answer.status, answer.body));
  return std::move(answer.body);
}

Result<Answer> Caller::exchange(const char* method, const std::string& path, std::string body,
                                TimeLimit limit) const {
  try {
    httplib::Client client(server_.host, server_.port);
    client.set_connection_timeout(limit.connect);
    client.set_read_timeout(limit.answer);
    client.set_write_timeout(limit.answer);
    client.set_tcp_nodelay(true);
    client.set_keep_alive(false);
    client.set_url_encode(false);
    httplib::Request request;
    request.method = method;
    request.path = path;
    request.headers.emplace("Accept-Encoding", "identity");
    if (!token_.empty()) request.headers.emplace("Authorization", "Bearer " + token_);
    if (!body.empty()) {
      request.headers.emplace("Content-Type", "application/json");
      request.body = std::move(body);
    }
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
    const httplib::Result result = client.send(request);
    if (result) {
      answer.status = result->status;
      return answer;
    }
    // httplib does not read trailers, with which some servers end the body of a refusal.
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
