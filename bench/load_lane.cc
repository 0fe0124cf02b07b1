#include "bench/load_lane.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <charconv>
#include <future>
#include <utility>

#include "http/caller.h"

namespace farpage::bench {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr Milliseconds kLateCheck{250};

// The number behind a name in the head of an answer; `otherwise` if it is not there.
size_t number_behind(std::string_view head, std::string_view name, size_t otherwise) {
  const size_t at = head.find(name);
  if (at == std::string_view::npos) return otherwise;
  size_t number = otherwise;
  const char* const first = head.data() + at + name.size();
  (void)std::from_chars(first, head.data() + head.size(), number);
  return number;
}

}  // namespace

struct LoadLane::Call {
  Call(uint32_t from, tcp::socket on) : host(from), socket(std::move(on)) {}
  const uint32_t host;
  tcp::socket socket;
  std::string request;
  std::string answer;
  std::array<char, 4096> part{};
  std::chrono::steady_clock::time_point deadline;
  Done done;  // empty: it has ended
};

LoadLane::LoadLane(uint16_t port)
    : work_(asio::make_work_guard(io_)), server_(asio::ip::address_v4::loopback(), port) {
  repeat(kLateCheck, [this] { return end_late_calls(); });
  thread_ = std::thread([this] { io_.run(); });
}

LoadLane::~LoadLane() {
  run([this] { drop_all(); });
  io_.stop();
  thread_.join();
}

void LoadLane::run(const std::function<void()>& work) {
  std::promise<void> ran;
  asio::post(io_, [&] {
    work();
    ran.set_value();
  });
  ran.get_future().wait();
}

void LoadLane::repeat(Milliseconds interval, std::function<bool()> tick) {
  const auto timer = std::make_shared<asio::steady_timer>(io_, interval);
  const auto again = std::make_shared<std::function<void(const error_code&)>>();
  const std::weak_ptr<std::function<void(const error_code&)>> weak = again;
  *again = [timer, interval, weak, tick = std::move(tick)](const error_code& error) {
    const auto self = weak.lock();
    if (error || self == nullptr || !tick()) return;
    timer->expires_at(timer->expiry() + interval);
    timer->async_wait([self](const error_code& next) { (*self)(next); });
  };
  timer->async_wait([again](const error_code& error) { (*again)(error); });
}

std::optional<tcp::socket> LoadLane::take_kept(uint32_t host) {
  const auto found = kept_.find(host);
  if (found == kept_.end()) return std::nullopt;
  Kept kept = std::move(found->second);
  kept_.erase(found);
  if (SteadyClock::read() - kept.since > http::kLongestIdle) return std::nullopt;
  char next = 0;
  const bool is_open =
      ::recv(kept.socket.native_handle(), &next, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
  return is_open ? std::optional(std::move(kept.socket)) : std::nullopt;
}

void LoadLane::call(uint32_t host, const char* method, std::string_view path, std::string_view body,
                    Milliseconds timeout, Done done) {
  std::optional<tcp::socket> kept = take_kept(host);
  const bool is_kept = kept.has_value();
  const auto call = std::make_shared<Call>(host, is_kept ? std::move(*kept) : tcp::socket(io_));
  call->request = fmt::format("{} {} HTTP/1.1\r\nHost: 127.0.0.1\r\n", method, path);
  if (!body.empty())
    call->request +=
        fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  call->request += "\r\n";
  call->request += body;
  call->deadline = std::chrono::steady_clock::now() + timeout;
  call->done = std::move(done);
  calls_.insert(call);
  if (is_kept) return advance(call);
  call->socket.async_connect(server_, [this, call](const error_code& error) {
    if (error) return fail(call, "connect: " + error.message());
    error_code ignored;
    call->socket.set_option(tcp::no_delay(true), ignored);
    advance(call);
  });
}

void LoadLane::advance(const std::shared_ptr<Call>& call) {
  asio::async_write(call->socket, asio::buffer(call->request),
                    [this, call](const error_code& error, size_t) {
                      if (error) return fail(call, "send: " + error.message());
                      receive(call);
                    });
}

void LoadLane::receive(const std::shared_ptr<Call>& call) {
  call->socket.async_read_some(
      asio::buffer(call->part), [this, call](const error_code& error, size_t count) {
        call->answer.append(call->part.data(), count);
        const size_t head = call->answer.find("\r\n\r\n");
        if (head != std::string::npos) {
          const std::string_view lines(call->answer.data(), head + 2);
          const size_t length = number_behind(lines, "Content-Length: ", 0);
          if (call->answer.size() >= head + 4 + length) {
            LaneAnswer answer;
            answer.status = static_cast<int>(number_behind(lines, "HTTP/1.1 ", 0));
            answer.body = call->answer.substr(head + 4, length);
            return end(call, std::move(answer));
          }
        }
        if (error) return fail(call, "receive: " + error.message());
        receive(call);
      });
}

void LoadLane::end(const std::shared_ptr<Call>& call, LaneAnswer answer) {
  if (!call->done) return;
  const Done done = std::exchange(call->done, nullptr);
  error_code ignored;
  if (answer.status != 0) {
    kept_.try_emplace(call->host, Kept{std::move(call->socket), SteadyClock::read()});
  } else {
    call->socket.close(ignored);
  }
  calls_.erase(call);
  done(answer);
}

void LoadLane::fail(const std::shared_ptr<Call>& call, std::string why) {
  LaneAnswer none;
  none.failure = std::move(why);
  end(call, std::move(none));
}

bool LoadLane::end_late_calls() {
  const auto now = std::chrono::steady_clock::now();
  std::set<std::shared_ptr<Call>> late;
  for (const auto& call : calls_)
    if (call->deadline <= now) late.insert(call);
  for (const auto& call : late) fail(call, "no answer in time");
  return true;
}

void LoadLane::drop_all() {
  for (const auto& call : std::exchange(calls_, {})) {
    call->done = nullptr;
    error_code ignored;
    call->socket.close(ignored);
  }
  kept_.clear();
}

}  // namespace farpage::bench
