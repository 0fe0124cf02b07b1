#include "bench/ping_pong.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <thread>

#include "base/fd.h"
#include "base/strong.h"
#include "bench/touch.h"

namespace farpage::bench {
namespace {

constexpr Seconds kPatience{5};  // for one reply
constexpr size_t kRequestBytes = 16;
constexpr uint64_t kWarmUp = 500;

using Request = std::array<std::byte, kRequestBytes>;
using Page = std::array<std::byte, kPageBytes>;

struct Pair {
  Fd asking;
  Fd answering;
};

Result<Pair> connected_pair() {
  FARPAGE_TRY(listener, Fd::from_call(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, length) != 0) return fail_errno("bind to 127.0.0.1");
  if (::getsockname(listener.get(), generic, &length) != 0) return fail_errno("getsockname");
  if (::listen(listener.get(), 1) != 0) return fail_errno("listen");
  Pair pair;
  FARPAGE_TRY(asking, Fd::from_call(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"));
  if (::connect(asking.get(), generic, length) != 0) return fail_errno("connect to 127.0.0.1");
  FARPAGE_TRY(answering,
              Fd::from_call(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC), "accept"));
  pair.asking = std::move(asking);
  pair.answering = std::move(answering);
  for (const Fd* end : {&pair.asking, &pair.answering}) {
    const int on = 1;
    const timeval patience{.tv_sec = kPatience.count(), .tv_usec = 0};
    if (::setsockopt(end->get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 ||
        ::setsockopt(end->get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0)
      return fail_errno("setsockopt");
  }
  return pair;
}

// False: the peer closed the connection, or a timeout.
bool receive(const Fd& socket, std::span<std::byte> bytes, PingPongWait wait) {
  const bool blocking = wait == PingPongWait::kBlocking;
  Instant give_up{0};
  while (!bytes.empty()) {
    const ssize_t got =
        ::recv(socket.get(), bytes.data(), bytes.size(), blocking ? MSG_WAITALL : MSG_DONTWAIT);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got < 0 && errno == EAGAIN && !blocking) {
      const Instant now = SteadyClock::read();
      if (give_up.count() == 0) give_up = now + kPatience;
      if (now >= give_up) return false;
      ::sched_yield();
    } else if (got == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool send(const Fd& socket, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) return false;
    if (sent > 0) bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return true;
}

// Replies until the peer closes.
void answer(const Fd& socket, PingPongWait wait) {
  Request request;
  Page page{};
  while (receive(socket, request, wait)) {
    std::memcpy(page.data(), request.data(), request.size());
    std::memcpy(page.data() + page.size() - request.size(), request.data(), request.size());
    if (!send(socket, page)) return;
  }
}

// Nanoseconds; nullopt: no answer, or a wrong one.
std::optional<uint64_t> ask(const Fd& socket, uint64_t number, PingPongWait wait) {
  Request request{};
  Page page;
  std::memcpy(request.data(), &number, sizeof number);
  const Instant before = SteadyClock::read();
  if (!send(socket, request) || !receive(socket, page, wait)) return std::nullopt;
  const auto ns = static_cast<uint64_t>((SteadyClock::read() - before).count());
  if (std::memcmp(page.data(), request.data(), request.size()) != 0 ||
      std::memcmp(page.data() + page.size() - request.size(), request.data(), request.size()) != 0)
    return std::nullopt;
  return ns;
}

}  // namespace

Result<Histogram> measure_tcp_ping_pong(const PingPongOptions& options) {
  FARPAGE_TRY(pair, connected_pair());
  Histogram histogram;
  std::thread answering([&] {
    if (options.pin) pin_this_thread(usable_cpu_count() - 1);
    answer(pair.answering, options.wait);
  });
  std::thread([&] {
    if (options.pin) pin_this_thread(0);
    for (uint64_t i = 0; i < kWarmUp + options.iterations; ++i) {
      const auto ns = ask(pair.asking, i, options.wait);
      if (!ns) return;
      if (i >= kWarmUp) histogram.record(*ns);
    }
  }).join();
  pair.asking.reset();
  answering.join();
  if (histogram.count() != options.iterations)
    return fail(ErrorCode::kUnavailable,
                "TCP ping-pong: an answer did not come, or was another one's");
  return histogram;
}

}  // namespace farpage::bench
