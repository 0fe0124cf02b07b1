// Caller: one HTTP/1.1 request at a time to one server, each on its own connection.
//
// A persistent connection would save a millisecond but adds a race: the server may close it while
// the next request is in flight. Calls are rare (heartbeats, leases), so there is none.
#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "http/url.h"

namespace farpage::http {

inline constexpr size_t kMaxAnswerBytes = size_t{128} << 20;  // a region of 65536 slabs: 40 MB

struct Answer {
  int status = 0;
  std::string body;
};
// Of a 2xx answer; else the failure in its problem+json.
Result<std::string> body_of(Answer answer);

// How long one call may take: to connect, and for each further step.
struct TimeLimit {
  TimeLimit(Milliseconds limit) : connect(limit), answer(limit) {}  // NOLINT: a limit is one
  TimeLimit(Milliseconds to_connect, Milliseconds to_answer)
      : connect(to_connect), answer(to_answer) {}
  Milliseconds connect;
  Milliseconds answer;
};

// Threads: any (no state beyond construction).
class Caller {
 public:
  Caller(Url server, std::string token) : server_(std::move(server)), token_(std::move(token)) {}

  // The answer, whatever its status. Empty `body`: the request has none.
  // kUnavailable: the server was not reached and received nothing of the request (sys_errno is
  // ETIMEDOUT when nothing answered at all, as for a machine that is off). kTimedOut: no complete
  // answer; the server may have executed the request.
  Result<Answer> exchange(const char* method, const std::string& path, std::string body,
                          TimeLimit limit) const;
  // The body of a 2xx answer. Fails as exchange() does, or with the failure in its problem+json.
  Result<std::string> call(const char* method, const std::string& path, std::string body,
                           TimeLimit limit) const;

  const Url& server() const { return server_; }

 private:
  Url server_;
  std::string token_;
};

}  // namespace farpage::http
