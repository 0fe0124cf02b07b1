// Caller: HTTP/1.1 requests to one server, each on a connection of its own, or on one that is kept.
//
// Who calls each second keeps it: with thousands of callers the server would spend most of its time
// on new connections. One that nobody has used for some seconds is not used again, since the server
// may close it while the next request is on its way (http/connection.cc).
#pragma once

#include <memory>
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

enum class Connections : bool { kOneEach, kKept };
// Of a kept connection between two requests: half of what the server waits (http/server.h).
inline constexpr Seconds kLongestIdle{5};

// Threads: any.
class Caller {
 public:
  Caller(Url server, std::string token, Connections connections = Connections::kOneEach);

  // The answer, whatever its status. Empty `body`: the request has none.
  // kUnavailable: the server was not reached and received nothing of the request (sys_errno is
  // ETIMEDOUT when nothing answered at all, as for a machine that is off). kTimedOut: no complete
  // answer; the server may have executed the request. Also of a machine that is off since the last
  // call on a kept connection: soon, and the next call makes a new one.
  Result<Answer> exchange(const char* method, const std::string& path, std::string body,
                          TimeLimit limit) const;
  // The body of a 2xx answer. Fails as exchange() does, or with the failure in its problem+json.
  Result<std::string> call(const char* method, const std::string& path, std::string body,
                           TimeLimit limit) const;

  const Url& server() const { return server_; }

 private:
  class Idle;
  Url server_;
  std::string token_;
  std::shared_ptr<Idle> idle_;  // null: none are kept
};

}  // namespace farpage::http
