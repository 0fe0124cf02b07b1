// Connection: one accepted socket, with one request after the other. Private to http/.
//
//   idle -> reading the head -> (reading the body) -> handling -> writing -> idle, or closed
//                            -> refused: writing -> lingering -> closed
//
// Everything here but the handlers, and what is marked so, runs on the one I/O thread, and never
// waits. A deadline ends each state but handling, in which the client's end of the connection is
// watched if somebody is to be told of it.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "http/request_checks.h"
#include "http/route_table.h"
#include "http/server.h"

namespace farpage::http {

class Connection;

// What the connections of a server share. It lives until the last of them, and of their pending
// replies, has gone.
struct ServerCore {
  ServerCore(ServerOptions with, std::vector<Route> routes, RequestObserver observing)
      : options(std::move(with)),
        table(std::move(routes)),
        observer(std::move(observing)),
        handlers(options.threads) {}

  const ServerOptions options;
  const RouteTable table;
  const RequestObserver observer;
  boost::asio::io_context io{1};
  boost::asio::thread_pool handlers;
  std::set<std::shared_ptr<Connection>> connections;  // the I/O thread's, as those below
  bool is_stopping = false;
  std::function<void()> on_empty;  // called without connections
};

// A request that is handled, and who asked. Not changed once a handler has it.
struct Exchange {
  RequestHead head;
  Request request;
  const Route* route = nullptr;
  Instant handling_since{0};
  bool keeps_connection = false;
  bool is_http_1_0 = false;
};

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<ServerCore> core, boost::asio::ip::tcp::socket socket)
      : core_(std::move(core)), socket_(std::move(socket)), deadline_(core_->io) {}

  void start();
  void drop_if_idle();
  // The server stops: ends it, unless its handler runs, or its reply is on the way.
  void drop_unless_running();
  // The same, once no handler runs.
  void drop_unless_writing();
  void close();

  // Threads: any.
  void reply_to(const std::shared_ptr<const Exchange>& exchange, const Reply& reply);
  void watch_for_end(std::shared_ptr<const Exchange> exchange, std::function<void()> gone);
  bool is_closed() const { return is_closed_.load(); }

 private:
  enum class Phase : uint8_t { kIdle, kReading, kHandling, kWriting, kLingering, kClosed };

  void expire_after(Milliseconds time);
  void await_request();
  void read_head();
  void take_head();
  void refuse_head(const boost::system::error_code& failure);
  void read_body(size_t length);
  void continue_body(size_t had);
  void handle();
  void run_handler(const std::shared_ptr<Exchange>& exchange);
  void watch_client();
  void send(std::string bytes);
  void write_rest(size_t sent);
  void end_exchange();
  void linger();
  void await_end();
  void refuse(const Reply& reply);

  const std::shared_ptr<ServerCore> core_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer deadline_;
  Phase phase_ = Phase::kReading;
  std::atomic<bool> is_closed_{false};
  boost::beast::flat_buffer buffer_{kMaxHeadBytes + 4096};
  std::optional<boost::beast::http::request_parser<boost::beast::http::empty_body>> parser_;
  std::shared_ptr<Exchange> exchange_;
  std::function<void()> gone_;
  std::string reply_;  // all its bytes
  char rest_[512];     // what nobody reads, of a request that was refused
};

}  // namespace farpage::http
