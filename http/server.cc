#include "http/server.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <future>
#include <thread>

#include "base/fd.h"
#include "base/log.h"
#include "http/connection.h"
#include "http/problem.h"

namespace farpage::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Connections that the kernel queues until accept() (at most net.core.somaxconn). With a short
// queue some of many concurrent callers would wait a second for a SYN retransmission.
constexpr int kBacklog = 4096;
constexpr int kAcceptsAtOnce = 64;                // then others get a turn
constexpr Milliseconds kWithoutDescriptors{100};  // until accept() is tried again

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

// A socket that listens on the first address of the host that has the port free.
Result<Fd> listen_on(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  std::string cause;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0) cause = fmt::format(" ({})", ::gai_strerror(code));
  const std::unique_ptr<addrinfo, FreeAddresses> list(code == 0 ? found : nullptr);
  for (const addrinfo* address = list.get(); address != nullptr; address = address->ai_next) {
    Fd socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    if (socket.get() >= 0 &&
        ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        ::bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0 &&
        ::listen(socket.get(), kBacklog) == 0)
      return socket;
    cause = fmt::format(" ({})", std::strerror(errno));
  }
  return fail(
      ErrorCode::kConflict,
      fmt::format(
          "cannot listen on {}:{}{}: is the port free, and is the address one of this host?", host,
          port, cause));
}

class AsioServer final : public Server {
 public:
  AsioServer(ServerOptions options, std::vector<Route> routes, RequestObserver observer)
      : core_(std::make_shared<ServerCore>(std::move(options), std::move(routes),
                                           std::move(observer))),
        acceptor_(core_->io),
        timer_(core_->io),
        work_(asio::make_work_guard(core_->io)) {}
  ~AsioServer() override { stop(); }

  Status start();
  uint16_t port() const override { return port_; }
  void stop() override;

 private:
  void await_connections();
  void accept_some();
  void run();
  void drop_pending();

  const std::shared_ptr<ServerCore> core_;
  tcp::acceptor acceptor_;
  asio::steady_timer timer_;  // until the next accept(); then, until stop() does not wait any more
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  tcp protocol_ = tcp::v4();
  uint16_t port_ = 0;
  std::thread thread_;
};

Status AsioServer::start() {
  FARPAGE_TRY(socket, listen_on(core_->options.host, core_->options.port));
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    return fail_errno("getsockname");
  error_code error;
  if (bound.ss_family == AF_INET6) protocol_ = tcp::v6();
  acceptor_.assign(protocol_, socket.release(), error);
  if (error) return fail(ErrorCode::kIo, "a socket that listens: " + error.message());
  port_ = acceptor_.local_endpoint(error).port();
  await_connections();
  thread_ = std::thread([this] { run(); });
  return {};
}

void AsioServer::run() {
  while (true) {
    try {
      core_->io.run();
      return;
    } catch (const std::exception& error) {
      log::error("http: connection_failed error=\"{}\"", error.what());
    }
  }
}

void AsioServer::await_connections() {
  acceptor_.async_wait(tcp::acceptor::wait_read, [this](const error_code& error) {
    if (!error) accept_some();
  });
}

void AsioServer::accept_some() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    Fd accepted(
        ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted.get() < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (accepted.get() < 0 && errno != EAGAIN) {
      log::warn("http: accept_failed error=\"{}\"", std::strerror(errno));
      for (const auto& connection : std::set(core_->connections)) connection->drop_if_idle();
      timer_.expires_after(kWithoutDescriptors);
      timer_.async_wait([this](const error_code& error) {
        if (!error) await_connections();
      });
      return;
    }
    if (accepted.get() < 0) break;
    tcp::socket socket(core_->io);
    error_code error;
    socket.assign(protocol_, accepted.get(), error);
    if (error) continue;
    static_cast<void>(accepted.release());
    socket.set_option(tcp::no_delay(true), error);
    std::make_shared<Connection>(core_, std::move(socket))->start();
  }
  await_connections();
}

// The replies that are on their way get io_timeout together.
void AsioServer::drop_pending() {
  core_->on_empty = [this] { timer_.cancel(); };
  for (const auto& connection : std::set(core_->connections)) connection->drop_unless_writing();
  if (core_->connections.empty()) return;
  timer_.expires_after(core_->options.io_timeout);
  timer_.async_wait([this](const error_code& error) {
    if (error) return;
    for (const auto& connection : std::set(core_->connections)) connection->close();
  });
}

void AsioServer::stop() {
  if (!thread_.joinable()) return;
  std::promise<void> closed;  // then no further handler is called
  asio::post(core_->io, [this, &closed] {
    error_code ignored;
    acceptor_.close(ignored);
    timer_.cancel();
    core_->is_stopping = true;
    for (const auto& connection : std::set(core_->connections)) connection->drop_unless_running();
    closed.set_value();
  });
  closed.get_future().wait();
  core_->handlers.join();
  asio::post(core_->io, [this] { drop_pending(); });
  work_.reset();
  thread_.join();
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
      std::make_unique<AsioServer>(std::move(options), std::move(routes), std::move(observer));
  FARPAGE_TRY_VOID(server->start());
  return server;
}

}  // namespace farpage::http
