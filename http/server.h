// Server: HTTP/1.1 on Boost.Asio and Boost.Beast, with a route table and checks of every request.
//
// Before a body is read, every request passes a guard: Transfer-Encoding, Content-Encoding and
// Range are refused (501, 415, 416), as are a repeated or invalid Content-Length (400, 413),
// bodies that are not application/json (415; this also stops cross-site posts), paths longer than
// kMaxPathBytes (414), missing tokens (401), unknown paths (404) and methods (405), and queries and
// bodies that the route does not take (400). A head of more than kMaxHeadBytes is malformed (400).
// A connection serves one request after the other, until one of them is refused, says `Connection:
// close`, or does not come within idle_timeout. The head of a request must have come within
// io_timeout, its body within kBodyTimeouts of them, and each part of its reply must be taken
// within one; until a request is complete, and while its reply is late (PendingReply), it holds no
// thread. Every status of 400 and above is problem+json; an exception becomes a 500.
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
inline constexpr size_t kMaxHeadBytes = size_t{32} << 10;
inline constexpr int kBodyTimeouts = 6;

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

// A request that is answered later: it holds its connection and this record, and no thread.
// Threads: any. Without reply() before its end the request is answered with 500.
class PendingReply {
 public:
  virtual ~PendingReply() = default;
  // Only the first call has an effect, and none when the client is gone. Does not block.
  virtual void reply(const Reply& reply) = 0;
  // `gone` is called once if the client closes its connection, or the server stops, before reply();
  // soon, if that is the case already. By the server's I/O thread, or by the caller's; also when a
  // reply was given that did not reach the client. Not while bytes of the client's next request
  // wait behind this one. It must not block.
  virtual void on_gone(std::function<void()> gone) = 0;
};

enum class Body : bool { kNone, kJson };
enum class Access : bool { kToken, kOpen };

struct Route {
  std::string method;   // GET, POST, PUT, DELETE
  std::string pattern;  // "/v1/nodes/{id}/heartbeat"; braces match one name
  std::vector<std::string> query;
  std::function<Reply(const Request&)> handler;
  Body body = Body::kNone;  // kNone: a request with one is refused, it was meant to have an effect
  Access access = Access::kToken;
  // In place of `handler`: may keep the request, and answer it after it has returned.
  std::function<void(const Request&, std::shared_ptr<PendingReply>)> later_handler{};
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;  // 0: any free one
  std::string token;  // empty: none is required
  uint32_t threads = 16;
  Milliseconds io_timeout{5000};
  // Until a connection without a request is closed. Longer than a client keeps one (kLongestIdle),
  // so that a request meets no connection that ends.
  Milliseconds idle_timeout{10'000};
};

// Called before each reply is sent, with the route's pattern ("refused" if none), the method, the
// status, and the time from the call of the handler to its reply.
using RequestObserver = std::function<void(const std::string& route, const std::string& method,
                                           int status, Nanoseconds elapsed)>;

// Threads: one for the connections, which it never lets wait, and `threads` that call the handlers.
// The observer is called by these, by the callers of PendingReply::reply(), and by the first one.
class Server {
 public:
  // Listens when it returns. kConflict: the port is taken.
  static Result<std::unique_ptr<Server>> create(ServerOptions options, std::vector<Route> routes,
                                                RequestObserver observer);
  virtual ~Server() = default;  // stops

  virtual uint16_t port() const = 0;
  // Blocks until the running handlers have returned (make them return first) and their replies are
  // sent, for up to io_timeout; drops the requests that are pending.
  virtual void stop() = 0;
};

}  // namespace farpage::http
