#include "http/server.h"

#include <fmt/format.h>
#include <httplib.h>
#include <strings.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <thread>

#include "base/log.h"
#include "http/problem.h"
#include "http/route_table.h"

namespace farpage::http {
namespace {

using HandlerResponse = httplib::Server::HandlerResponse;

constexpr int64_t kKeepAliveSeconds = 5;  // idle limit of a connection before its request
// Connections that the kernel queues until accept() (at most net.core.somaxconn). httplib uses 5:
// with some tens of concurrent callers, further ones wait a second for a SYN retransmission.
constexpr int kBacklog = 4096;

// Constant time for all wrong tokens of the same length.
bool equal_secret(std::string_view given, std::string_view expected) {
  unsigned difference = given.size() == expected.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i)
    difference |= static_cast<unsigned char>(given[i] ^ expected[i % expected.size()]);
  return difference == 0;
}

bool has_token(const httplib::Request& request, const std::string& token) {
  if (token.empty()) return true;
  constexpr std::string_view kScheme = "Bearer ";  // in any case (RFC 9110, 11.1)
  const std::string header = request.get_header_value("Authorization");
  return ::strncasecmp(header.c_str(), kScheme.data(), kScheme.size()) == 0 &&
         equal_secret(std::string_view(header).substr(kScheme.size()), token);
}

Reply refuse(int status, ErrorCode code, std::string text) {
  return problem_reply(status, Error{code, std::move(text), 0});
}

// The request's Content-Length; nullopt when it is absent, -1 when it is invalid.
std::optional<int64_t> content_length(const httplib::Request& request) {
  const size_t count = request.get_header_value_count("Content-Length");
  if (count == 0) return std::nullopt;
  const std::string text = request.get_header_value("Content-Length");
  int64_t length = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  const bool sound = count == 1 && error == std::errc() && end == text.data() + text.size();
  return sound ? length : -1;
}

std::optional<Reply> refuse_framing(const httplib::Request& request) {
  if (request.has_header("Transfer-Encoding"))
    return refuse(501, ErrorCode::kUnsupported,
                  "Transfer-Encoding is not supported: send the body with Content-Length");
  if (request.has_header("Content-Encoding"))
    return refuse(415, ErrorCode::kUnsupported,
                  "Content-Encoding is not supported: send plain JSON");
  if (request.has_header("Range"))
    return refuse(416, ErrorCode::kUnsupported,
                  "Range is not supported: request the whole resource");
  const std::optional<int64_t> length = content_length(request);
  if (length && *length < 0)
    return refuse(400, ErrorCode::kInvalid, "Content-Length must be one non-negative integer");
  if (length && *length > static_cast<int64_t>(kMaxBodyBytes))
    return refuse(
        413, ErrorCode::kInvalid,
        fmt::format("the body has {} bytes, at most {} are allowed", *length, kMaxBodyBytes));
  const std::string type = request.get_header_value("Content-Type");
  if (length && *length > 0 && type.substr(0, type.find(';')) != "application/json")
    return refuse(415, ErrorCode::kInvalid, "the body must have Content-Type: application/json");
  if (request.path.size() > kMaxPathBytes)
    return refuse(414, ErrorCode::kInvalid, "the path is too long");
  return std::nullopt;
}

std::optional<Reply> refuse_body(const httplib::Request& request, const Route& route) {
  if (route.body == Body::kJson || content_length(request).value_or(0) == 0) return std::nullopt;
  return refuse(400, ErrorCode::kInvalid, "this route takes no body");
}

std::optional<Reply> refuse_query(const httplib::Request& request, const Route& route) {
  for (const auto& [key, value] : request.params) {
    if (std::find(route.query.begin(), route.query.end(), key) == route.query.end())
      return refuse(400, ErrorCode::kInvalid,
                    route.query.empty()
                        ? "this route takes no query parameters"
                        : fmt::format("an unknown query parameter: this route takes {}",
                                      fmt::join(route.query, ", ")));
    if (request.params.count(key) > 1)
      return refuse(400, ErrorCode::kInvalid, "the query parameter " + key + " is given twice");
  }
  return std::nullopt;
}

std::string_view lookup_method(const httplib::Request& request) {
  return request.method == "HEAD" ? std::string_view("GET") : std::string_view(request.method);
}

void put(const Reply& reply, httplib::Response& response) {
  response.status = reply.status;
  for (const auto& [name, value] : reply.headers) response.set_header(name, value);
  if (reply.status != 204) response.set_content(reply.body, reply.content_type);
}

// httplib would cut every reply, also a refusal, to the requested ranges. The cast is safe:
// httplib's request object is not const, only the handlers' reference to it is.
void forget_ranges(const httplib::Request& request) {
  const_cast<httplib::Request&>(request).ranges.clear();
}

class HttplibServer final : public Server {
 public:
  HttplibServer(ServerOptions options, std::vector<Route> routes, RequestObserver observer)
      : options_(std::move(options)), table_(std::move(routes)), observer_(std::move(observer)) {}
  ~HttplibServer() override { stop(); }

  Status start();
  uint16_t port() const override { return port_; }
  void stop() override;

 private:
  void configure();
  // The refusal of a request that must not reach a handler.
  std::optional<Reply> guard(const httplib::Request& request) const;
  HandlerResponse handle_head(const httplib::Request& request, httplib::Response& response) const;
  void dispatch(const httplib::Request& request, httplib::Response& response) const;
  Reply run(const Route& route, const Request& request) const;

  const ServerOptions options_;
  const RouteTable table_;
  const RequestObserver observer_;
  httplib::Server server_;
  socket_t socket_ = -1;  // the last one that httplib tried to bind: its listening socket
  uint16_t port_ = 0;
  std::atomic<bool> ended_{false};
  std::thread listener_;
};

std::optional<Reply> HttplibServer::guard(const httplib::Request& request) const {
  if (auto refused = refuse_framing(request)) return refused;
  const RouteMatch match = table_.match(lookup_method(request), request.path);
  const bool open = match.route != nullptr && match.route->access == Access::kOpen;
  if (!open && !has_token(request, options_.token)) {
    Reply reply = refuse(401, ErrorCode::kDenied,
                         "the bearer token is missing or wrong: send Authorization: Bearer "
                         "with the cluster's token");
    reply.headers["WWW-Authenticate"] = "Bearer";
    return reply;
  }
  if (match.route != nullptr) {
    if (auto refused = refuse_body(request, *match.route)) return refused;
    return refuse_query(request, *match.route);
  }
  if (match.other_methods.empty())
    return refuse(404, ErrorCode::kNotFound,
                  table_.match("GET", "/openapi.json").route != nullptr
                      ? "no such path: /openapi.json lists all"
                      : "no such path");
  Reply reply = refuse(405, ErrorCode::kInvalid,
                       fmt::format("this path supports {}", fmt::join(match.other_methods, ", ")));
  reply.headers["Allow"] = fmt::format("{}", fmt::join(match.other_methods, ", "));
  return reply;
}

// Runs before the body is read.
HandlerResponse HttplibServer::handle_head(const httplib::Request& request,
                                           httplib::Response& response) const {
  if (const std::optional<Reply> refused = guard(request)) {
    forget_ranges(request);
    put(*refused, response);
    observer_("refused", "", refused->status, Nanoseconds(0));
    return HandlerResponse::Handled;
  }
  // Without Content-Length there is no body (RFC 9112, 6.3); httplib would wait for one until the
  // connection ends.
  if (content_length(request).value_or(0) > 0) return HandlerResponse::Unhandled;
  dispatch(request, response);
  return HandlerResponse::Handled;
}

Reply HttplibServer::run(const Route& route, const Request& request) const {
  try {
    return route.handler(request);
  } catch (const std::exception& error) {
    log::error("http: handler_failed route={} error=\"{}\"", route.pattern, error.what());
    return problem_reply(Error{ErrorCode::kIo, "the server failed: see its log", 0});
  }
}

void HttplibServer::dispatch(const httplib::Request& request, httplib::Response& response) const {
  const RouteMatch match = table_.match(lookup_method(request), request.path);
  if (match.route == nullptr)
    return put(refuse(404, ErrorCode::kNotFound, "no such path"), response);
  Request ours;
  ours.ids = match.ids;
  for (const auto& [key, value] : request.params) ours.query[key] = value;
  ours.body = request.body;
  const Instant start = SteadyClock::read();
  const Reply reply = run(*match.route, ours);
  const Nanoseconds elapsed = SteadyClock::read() - start;
  put(reply, response);
  observer_(match.route->pattern, match.route->method, reply.status, elapsed);
}

void HttplibServer::configure() {
  server_.new_task_queue = [threads = options_.threads] {
    return new httplib::ThreadPool(threads);  // httplib deletes it
  };
  // httplib sets SO_REUSEPORT by default: two coordinators would share a port without an error.
  server_.set_socket_options([this](socket_t socket) {
    const int on = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    socket_ = socket;
  });
  server_.set_tcp_nodelay(true);
  server_.set_keep_alive_max_count(1);
  server_.set_keep_alive_timeout(kKeepAliveSeconds);
  server_.set_read_timeout(options_.io_timeout);
  server_.set_write_timeout(options_.io_timeout);
  server_.set_payload_max_length(kMaxBodyBytes);
  server_.set_pre_routing_handler(
      [this](const httplib::Request& request, httplib::Response& response) {
        return handle_head(request, response);
      });
  server_.set_exception_handler(
      [](const httplib::Request&, httplib::Response& response, const std::exception_ptr&) {
        log::error("http: request_failed");
        put(problem_reply(Error{ErrorCode::kIo, "the server failed: see its log", 0}), response);
      });
  // Refusals of httplib itself (a malformed request line, a header without end) have no body yet.
  server_.set_error_handler(httplib::Server::HandlerWithResponse(
      [](const httplib::Request& request, httplib::Response& response) -> HandlerResponse {
        forget_ranges(request);
        if (!response.body.empty()) return HandlerResponse::Unhandled;
        put(refuse(response.status, ErrorCode::kInvalid, "the request is malformed"), response);
        return HandlerResponse::Handled;
      }));
  const auto handler = [this](const httplib::Request& request, httplib::Response& response) {
    dispatch(request, response);
  };
  server_.Get(".*", handler).Post(".*", handler).Put(".*", handler).Delete(".*", handler);
}

Status HttplibServer::start() {
  configure();
  errno = 0;
  const int port = options_.port == 0
                       ? server_.bind_to_any_port(options_.host)
                       : (server_.bind_to_port(options_.host, options_.port) ? options_.port : -1);
  if (port <= 0) {
    // httplib closes its socket after the failure, which leaves errno as it is.
    const std::string cause = errno != 0 ? fmt::format(" ({})", std::strerror(errno)) : "";
    return fail(
        ErrorCode::kConflict,
        fmt::format(
            "cannot listen on {}:{}{}: is the port free, and is the address one of this host?",
            options_.host, options_.port, cause));
  }
  port_ = static_cast<uint16_t>(port);
  if (::listen(socket_, kBacklog) != 0) return fail_errno("listen");
  listener_ = std::thread([this] {
    server_.listen_after_bind();
    ended_.store(true, std::memory_order_release);  // pairs with the acquire in start()
  });
  // A stop() before the accept loop runs would have no effect; the socket already accepts.
  while (!server_.is_running() && !ended_.load(std::memory_order_acquire))
    std::this_thread::yield();
  return {};
}

void HttplibServer::stop() {
  if (!listener_.joinable()) return;
  server_.stop();
  listener_.join();
}

}  // namespace

Reply problem_reply(int status, const Error& error) {
  Reply reply;
  reply.status = status;
  reply.body = encode_problem(status, error);
  reply.content_type = kProblemType;
  return reply;
}

Reply problem_reply(const Error& error) {
  return problem_reply(status_of(error), error);
}

Result<std::unique_ptr<Server>> Server::create(ServerOptions options, std::vector<Route> routes,
                                               RequestObserver observer) {
  auto server =
      std::make_unique<HttplibServer>(std::move(options), std::move(routes), std::move(observer));
  FARPAGE_TRY_VOID(server->start());
  return server;
}

}  // namespace farpage::http
