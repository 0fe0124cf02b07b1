#include "http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <limits>
#include <utility>

#include "base/log.h"

namespace farpage::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using boost::system::error_code;

// A client that is still sending what was refused gets the reply, not a reset.
constexpr Milliseconds kLinger{1000};

std::string to_string(beast::string_view text) {
  return {text.data(), text.size()};
}

RequestHead head_of(const beast::http::fields& fields, beast::string_view method,
                    beast::string_view target) {
  using beast::http::field;
  RequestHead head;
  head.method = to_string(method);
  set_target(head, std::string_view(target.data(), target.size()));
  const auto lengths = fields.equal_range(field::content_length);
  for (auto it = lengths.first; it != lengths.second; ++it)
    head.content_lengths.push_back(to_string(it->value()));
  head.content_type = to_string(fields[field::content_type]);
  head.authorization = to_string(fields[field::authorization]);
  head.has_transfer_encoding = fields.count(field::transfer_encoding) > 0;
  head.has_content_encoding = fields.count(field::content_encoding) > 0;
  head.has_range = fields.count(field::range) > 0;
  return head;
}

std::string bytes_of(const Reply& reply, const Exchange& exchange) {
  const bool with_body = !exchange.head.is_head();
  std::string bytes = fmt::format("HTTP/1.1 {} {}\r\n", reply.status,
                                  to_string(beast::http::obsolete_reason(beast::http::int_to_status(
                                      static_cast<unsigned>(reply.status)))));
  for (const auto& [name, value] : reply.headers) bytes += name + ": " + value + "\r\n";
  if (reply.status != 204)
    bytes += fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n", reply.content_type,
                         reply.body.size());
  if (!exchange.keeps_connection) {
    bytes += "Connection: close\r\n";
  } else if (exchange.is_http_1_0) {
    bytes += "Connection: keep-alive\r\n";
  }
  bytes += "\r\n";
  if (with_body && reply.status != 204) bytes += reply.body;
  return bytes;
}

Reply server_failed() {
  return problem_reply(Error{ErrorCode::kIo, "the server failed: see its log", 0});
}

void observe(const ServerCore& core, const Exchange& exchange, int status) {
  core.observer(exchange.route->pattern, exchange.route->method, status,
                SteadyClock::read() - exchange.handling_since);
}

// The request of a connection, which may be gone.
class Pending final : public PendingReply {
 public:
  Pending(std::weak_ptr<Connection> connection, std::shared_ptr<const ServerCore> core,
          std::shared_ptr<const Exchange> exchange)
      : connection_(std::move(connection)),
        core_(std::move(core)),
        exchange_(std::move(exchange)) {}
  ~Pending() override {
    if (!replied_.load()) reply(server_failed());
  }

  void reply(const Reply& reply) override {
    if (replied_.exchange(true)) return;
    const std::shared_ptr<Connection> connection = connection_.lock();
    if (connection == nullptr || connection->is_closed()) return;
    observe(*core_, *exchange_, reply.status);
    connection->reply_to(exchange_, reply);
  }
  void on_gone(std::function<void()> gone) override {
    if (const std::shared_ptr<Connection> connection = connection_.lock(); connection != nullptr)
      return connection->watch_for_end(exchange_, std::move(gone));
    gone();
  }

 private:
  const std::weak_ptr<Connection> connection_;
  const std::shared_ptr<const ServerCore> core_;
  const std::shared_ptr<const Exchange> exchange_;
  std::atomic<bool> replied_{false};
};

}  // namespace

void Connection::start() {
  core_->connections.insert(shared_from_this());
  error_code ignored;
  socket_.non_blocking(true, ignored);
  read_head();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  is_closed_.store(true);
  const std::shared_ptr<Connection> self = shared_from_this();
  deadline_.cancel();
  error_code ignored;
  socket_.close(ignored);
  core_->connections.erase(self);
  if (gone_) std::exchange(gone_, nullptr)();
  if (core_->connections.empty() && core_->on_empty) core_->on_empty();
}

void Connection::drop_if_idle() {
  if (phase_ == Phase::kIdle) close();
}

void Connection::drop_unless_running() {
  if (phase_ != Phase::kHandling && phase_ != Phase::kWriting) close();
}

void Connection::drop_unless_writing() {
  if (phase_ != Phase::kWriting) close();
}

void Connection::expire_after(Milliseconds time) {
  deadline_.expires_after(time);
  deadline_.async_wait([self = shared_from_this()](const error_code& error) {
    // A later deadline may have been set while this call was queued.
    if (!error && self->deadline_.expiry() <= std::chrono::steady_clock::now()) self->close();
  });
}

// What has come of it behind the one before is in buffer_.
void Connection::await_request() {
  // What a large one has taken is not kept.
  reply_ = std::string();
  exchange_.reset();
  parser_.reset();
  phase_ = Phase::kReading;
  if (buffer_.size() > 0) return read_head();
  phase_ = Phase::kIdle;
  expire_after(core_->options.idle_timeout);
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     [self = shared_from_this()](const error_code& error) {
                       if (self->phase_ != Phase::kIdle) return;
                       if (error) return self->close();
                       self->phase_ = Phase::kReading;
                       self->read_head();
                     });
}

void Connection::read_head() {
  expire_after(core_->options.io_timeout);
  exchange_ = std::make_shared<Exchange>();
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(kMaxHeadBytes));
  parser_->body_limit(std::numeric_limits<uint64_t>::max());  // check_request() has the limit
  beast::http::async_read_header(socket_, buffer_, *parser_,
                                 [self = shared_from_this()](const error_code& error, size_t) {
                                   if (self->phase_ != Phase::kReading) return;
                                   if (error) return self->refuse_head(error);
                                   self->take_head();
                                 });
}

void Connection::refuse_head(const error_code& failure) {
  using beast::http::error;
  const bool is_encoded = parser_->get().count(beast::http::field::transfer_encoding) > 0;
  if (failure == error::bad_transfer_encoding ||
      (failure == error::bad_content_length && is_encoded))
    return refuse(refuse_transfer_encoding());
  if (failure == error::bad_content_length) return refuse(refuse_content_length());
  const bool is_http = failure.category() == make_error_code(error::bad_method).category();
  if (!is_http || failure == error::end_of_stream || failure == error::partial_message)
    return close();
  refuse(malformed_request());
}

void Connection::take_head() {
  const auto& message = parser_->get();
  RequestHead& head = exchange_->head;
  head = head_of(message, message.method_string(), message.target());
  CheckedRequest checked = check_request(head, core_->table, core_->options.token);
  if (checked.refusal) return refuse(*checked.refusal);
  exchange_->keeps_connection = message.keep_alive();
  exchange_->is_http_1_0 = message.version() == 10;
  exchange_->route = checked.match.route;
  exchange_->request.ids = std::move(checked.match.ids);
  for (auto& [key, value] : head.query) exchange_->request.query[key] = std::move(value);
  read_body(static_cast<size_t>(content_length(head).value_or(0)));
}

void Connection::refuse(const Reply& reply) {
  core_->observer("refused", "", reply.status, Nanoseconds(0));
  send(bytes_of(reply, *exchange_));
}

void Connection::read_body(size_t length) {
  const size_t had = std::min(length, buffer_.size());
  std::string& body = exchange_->request.body;
  body.resize(length);
  std::copy_n(static_cast<const char*>(buffer_.data().data()), had, body.begin());
  buffer_.consume(had);
  if (had == length) return handle();
  expire_after(kBodyTimeouts * core_->options.io_timeout);
  const bool waits = beast::iequals(parser_->get()[beast::http::field::expect], "100-continue");
  if (!waits) return continue_body(had);
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(socket_, asio::buffer(kContinue.data(), kContinue.size()),
                    [self = shared_from_this(), had](const error_code& error, size_t) {
                      if (self->phase_ != Phase::kReading) return;
                      if (error) return self->close();
                      self->continue_body(had);
                    });
}

void Connection::continue_body(size_t had) {
  std::string& body = exchange_->request.body;
  asio::async_read(socket_, asio::buffer(body.data() + had, body.size() - had),
                   [self = shared_from_this()](const error_code& error, size_t) {
                     if (self->phase_ != Phase::kReading) return;
                     if (error) return self->close();
                     self->handle();
                   });
}

void Connection::handle() {
  phase_ = Phase::kHandling;
  // Not only cancelled: that would not recall a call that is queued.
  deadline_.expires_at(std::chrono::steady_clock::time_point::max());
  asio::post(core_->handlers,
             [self = shared_from_this(), exchange = exchange_] { self->run_handler(exchange); });
}

// On a handler's thread. The connection may go on with its next request meanwhile, once a record
// has answered.
void Connection::run_handler(const std::shared_ptr<Exchange>& exchange) {
  exchange->handling_since = SteadyClock::read();
  const Route& route = *exchange->route;
  Reply reply;
  try {
    if (route.later_handler)
      return route.later_handler(exchange->request,
                                 std::make_shared<Pending>(weak_from_this(), core_, exchange));
    reply = route.handler(exchange->request);
  } catch (const std::exception& error) {
    log::error("http: handler_failed route={} error=\"{}\"", route.pattern, error.what());
    if (route.later_handler) return;  // its record answers at its end
    reply = server_failed();
  }
  observe(*core_, *exchange, reply.status);
  reply_to(exchange, reply);
}

void Connection::reply_to(const std::shared_ptr<const Exchange>& exchange, const Reply& reply) {
  // Weak: what a stopped server does not run any more must not keep it.
  asio::post(
      core_->io, [weak = weak_from_this(), exchange, bytes = bytes_of(reply, *exchange)]() mutable {
        const std::shared_ptr<Connection> self = weak.lock();
        if (self != nullptr && self->phase_ == Phase::kHandling && self->exchange_ == exchange)
          self->send(std::move(bytes));
      });
}

void Connection::watch_for_end(std::shared_ptr<const Exchange> exchange,
                               std::function<void()> gone) {
  asio::post(core_->io, [weak = weak_from_this(), exchange = std::move(exchange),
                         gone = std::move(gone)]() mutable {
    const std::shared_ptr<Connection> self = weak.lock();
    if (self == nullptr || self->phase_ == Phase::kClosed) return gone();
    // It was answered.
    if (self->phase_ != Phase::kHandling || self->exchange_ != exchange) return;
    self->gone_ = std::move(gone);
    self->watch_client();
  });
}

// A client that has sent its next request already is not seen to go away.
void Connection::watch_client() {
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     [self = shared_from_this(), exchange = exchange_](const error_code& error) {
                       if (self->phase_ != Phase::kHandling || self->exchange_ != exchange) return;
                       char next = 0;
                       error_code failure = error;
                       if (!failure)
                         self->socket_.receive(asio::buffer(&next, 1),
                                               asio::socket_base::message_peek, failure);
                       if (failure == asio::error::would_block) return self->watch_client();
                       if (failure) self->close();
                     });
}

void Connection::send(std::string bytes) {
  phase_ = Phase::kWriting;
  gone_ = nullptr;
  reply_ = std::move(bytes);
  write_rest(0);
}

void Connection::write_rest(size_t sent) {
  // Most replies fit into the socket's buffer at once.
  error_code error;
  while (!error && sent < reply_.size())
    sent += socket_.write_some(asio::buffer(reply_.data() + sent, reply_.size() - sent), error);
  if (sent == reply_.size()) return end_exchange();
  if (error != asio::error::would_block) return close();
  expire_after(core_->options.io_timeout);
  socket_.async_wait(asio::ip::tcp::socket::wait_write,
                     [self = shared_from_this(), sent](const error_code& failure) {
                       if (self->phase_ != Phase::kWriting) return;
                       if (failure) return self->close();
                       self->write_rest(sent);
                     });
}

void Connection::end_exchange() {
  const bool is_refused = exchange_->route == nullptr;  // perhaps before all of it was read
  if (is_refused) return linger();
  if (!exchange_->keeps_connection || core_->is_stopping) return close();
  await_request();
}

// To close a socket with bytes that were not read would reset the connection, and could destroy the
// reply on its way.
void Connection::linger() {
  phase_ = Phase::kLingering;
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  expire_after(kLinger);
  await_end();
}

void Connection::await_end() {
  socket_.async_receive(asio::buffer(rest_),
                        [self = shared_from_this()](const error_code& error, size_t) {
                          if (self->phase_ != Phase::kLingering) return;
                          if (error) return self->close();
                          self->await_end();
                        });
}

}  // namespace farpage::http
