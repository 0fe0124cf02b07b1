// HttpCaller: one HTTP/1.1 request at a time to one server, each on a connection of its own.
//
// A kept connection would save a millisecond and cost a class of failures: the server may close it
// while the next request is on its way. Calls here are rare (heartbeats, leases), so they do
// without.
#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"
#include "coordinator/url.h"

namespace farpage::coordinator {

inline constexpr size_t kMaxAnswerBytes = size_t{128} << 20;  // a region of 65536 slabs has 40 MB

// Threads: any (no state beyond construction).
class HttpCaller {
 public:
  HttpCaller(HttpUrl server, std::string token)
      : server_(std::move(server)), token_(std::move(token)) {}

  // The body of a 2xx answer. A request without body: empty `body`.
  // kUnavailable: the server was not reached, and saw nothing of the request (sys_errno is
  // ETIMEDOUT when nothing answered at all, as for a machine that is off). kTimedOut: no whole
  // answer came, and the server may have done it or not. Else what its problem+json says.
  Result<std::string> call(const char* method, const std::string& path, std::string body,
                           Milliseconds timeout) const;

 private:
  HttpUrl server_;
  std::string token_;
};

}  // namespace farpage::coordinator
