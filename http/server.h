// Server: cpp-httplib 0.11 with a route table and the request checks that the library lacks.
//
// Before a body is read, every request passes a guard: Transfer-Encoding, Content-Encoding and
// Range are refused (501, 415, 416), as are a repeated or invalid Content-Length (400, 413),
// bodies that are not application/json (415; this also stops cross-site posts), paths longer than
// kMaxPathBytes (414), missing tokens (401), unknown paths (404) and methods (405), and queries and
// bodies that the route does not take (400). A connection
// serves one request and has a short idle timeout, so that none holds a thread for long.
// Every status of 400 and above is problem+json; an exception becomes a 500.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace farpage::http {

inline constexpr size_t kMaxBodyBytes = size_t{1} << 20;
inline constexpr size_t kMaxPathBytes = 512;

struct Request {
  std::vector<std::string> ids;              // the value of each {} of the pattern: is_name()
  std::map<std::string, std::string> query;  // only the keys that the route allows
  std::string body;
};

struct Reply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::map<std::string, std::string> headers;
};

Reply problem_reply(const Error& error);
Reply problem_reply(int status, const Error& error);

enum class Body : bool { kNone, kJson };
enum class Access : bool { kToken, kOpen };

struct Route {
  std::string method;   // GET, POST, PUT, DELETE
  std::string pattern;  // "/v1/nodes/{id}/heartbeat"; braces match one name
  std::vector<std::string> query;
  std::function<Reply(const Request&)> handler;
  Body body = Body::kNone;  // kNone: a request with one is refused, it was meant to have an effect
  Access access = Access::kToken;
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  std::string token;  // empty: none is required
  uint32_t threads = 16;
  Milliseconds io_timeout{5000};
};

// Called after each request with the route's pattern ("refused" if none), the method, the status
// and the handler's run time.
using RequestObserver = std::function<void(const std::string& route, const std::string& method,
                                           int status, Nanoseconds elapsed)>;

// Threads: `threads` threads call the handlers and the observer concurrently.
class Server {
 public:
  // Listens when it returns. kConflict: the port is taken.
  static Result<std::unique_ptr<Server>> create(ServerOptions options, std::vector<Route> routes,
                                                RequestObserver observer);
  virtual ~Server() = default;  // stops

  virtual uint16_t port() const = 0;
  // Blocks until the running handlers have returned; make them return first.
  virtual void stop() = 0;
};

}  // namespace farpage::http
