// The checks that a request must pass before its body is read (server.h lists them).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http/route_table.h"
#include "http/server.h"

namespace farpage::http {

// The request line and those headers that matter here.
struct RequestHead {
  std::string method;
  std::string path;                                        // decoded, without query
  std::vector<std::pair<std::string, std::string>> query;  // decoded, in their order
  std::vector<std::string> content_lengths;                // the values of each such header
  std::string content_type;
  std::string authorization;
  bool has_transfer_encoding = false;
  bool has_content_encoding = false;
  bool has_range = false;

  bool is_head() const { return method == "HEAD"; }  // as GET, but its reply has no body
};

// Sets path and query from a request target: "/v1/events?since=1&timeout=2.5#part". An invalid
// escape (%zz) stays as it is.
void set_target(RequestHead& head, std::string_view target);

// nullopt: none, so that there is no body (RFC 9112, 6.3). -1: invalid.
std::optional<int64_t> content_length(const RequestHead& head);

struct CheckedRequest {
  RouteMatch match;              // its route is set unless the request is refused
  std::optional<Reply> refusal;  // the reply to a request that must not reach a handler
};

// Threads: any.
CheckedRequest check_request(const RequestHead& head, const RouteTable& table,
                             const std::string& token);

// Of requests whose head cannot be read as HTTP/1.1.
Reply malformed_request();
Reply refuse_transfer_encoding();
Reply refuse_content_length();

}  // namespace farpage::http
