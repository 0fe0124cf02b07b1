#include "rdma/tcp/socket.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <memory>
#include <optional>

namespace farpage::rdma::tcp {
namespace {

constexpr int kBacklog = 256;
constexpr int kKeepAliveIdleSeconds = 5;
constexpr int kKeepAliveIntervalSeconds = 2;
constexpr int kKeepAliveProbes = 4;

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<AddressList> resolve(const std::string& host, uint16_t port, bool passive) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const bool any = passive && (host.empty() || host == "*");
  const int code =
      ::getaddrinfo(any ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (code != 0)
    return fail(ErrorCode::kInvalid, fmt::format("host '{}': {}", host, ::gai_strerror(code)));
  return AddressList(found, &::freeaddrinfo);
}

// Waits for the events; false when the deadline passed first.
Result<bool> wait_for(int socket, short events, Instant deadline) {
  for (;;) {
    const Instant now = SteadyClock::read();
    if (now >= deadline) return false;
    const auto left = std::chrono::ceil<Milliseconds>(deadline - now).count();
    pollfd entry{socket, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return fail_errno("poll");
  }
}

Result<Fd> connect_one(const addrinfo& address, const std::string& name, Instant deadline) {
  const int flags = address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC;
  FARPAGE_TRY(fd, Fd::from_call(::socket(address.ai_family, flags, address.ai_protocol), "socket"));
  tune(fd.get());
  if (::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) return fd;
  if (errno != EINPROGRESS) return fail_errno("connect to " + name);
  FARPAGE_TRY(ready, wait_for(fd.get(), POLLOUT, deadline));
  if (!ready) return fail(ErrorCode::kTimedOut, "connect to " + name + " timed out");
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0)
    return fail_errno("SO_ERROR");
  if (error != 0) return fail_errno("connect to " + name, error);
  return fd;
}

struct NumericName {
  std::string host;
  std::string port;
};

// `end`: getsockname or getpeername.
std::optional<NumericName> numeric_name(int socket, decltype(&::getpeername) end) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (end(socket, address, &length) != 0) return std::nullopt;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  if (::getnameinfo(address, length, host.data(), host.size(), service.data(), service.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return std::nullopt;
  return NumericName{host.data(), service.data()};
}

}  // namespace

void tune(int socket) {
  const auto set = [&](int level, int name, int value) {
    (void)::setsockopt(socket, level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kKeepAliveIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kKeepAliveIntervalSeconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, kKeepAliveProbes);
  constexpr std::string_view kCubic = "cubic";
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, kCubic.data(), kCubic.size());
}

void limit_unacknowledged(int socket) {
  const unsigned limit_ms =
      1000 * (kKeepAliveIdleSeconds + kKeepAliveIntervalSeconds * kKeepAliveProbes);
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
}

Result<Fd> connect_to(const std::string& host, uint16_t port, Instant deadline) {
  FARPAGE_TRY(addresses, resolve(host, port, false));
  const std::string name = fmt::format("{}:{}", host, port);
  Result<Fd> last = fail(ErrorCode::kUnavailable, name + " has no address");
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    last = connect_one(*address, name, deadline);
    if (last) break;
  }
  return last;
}

Result<Fd> listen_on(const std::string& host, uint16_t port) {
  FARPAGE_TRY(addresses, resolve(host, port, true));
  const std::string name = fmt::format("listen on {}:{}", host, port);
  const addrinfo& address = *addresses;
  const int flags = address.ai_socktype | SOCK_CLOEXEC;
  FARPAGE_TRY(fd, Fd::from_call(::socket(address.ai_family, flags, address.ai_protocol), "socket"));
  const int on = 1;
  (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0) return fail_errno(name);
  if (::listen(fd.get(), kBacklog) != 0) return fail_errno(name);
  return fd;
}

Result<uint16_t> port_of(int socket) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  if (::getsockname(socket, address, &length) != 0) return fail_errno("getsockname");
  if (storage.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

bool is_wildcard(const std::string& host) {
  return host.empty() || host == "*" || host == "0.0.0.0" || host == "::";
}

bool is_to_own_host(int socket) {
  const auto own = numeric_name(socket, ::getsockname);
  const auto peer = numeric_name(socket, ::getpeername);
  return own && peer && own->host == peer->host;
}

bool has_unacknowledged(int socket) {
  int bytes = 0;
  return ::ioctl(socket, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

std::optional<WireUse> wire_use(int socket) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  using std::chrono::microseconds;
  return WireUse{.acknowledged_bytes = info.tcpi_bytes_acked,
                 .busy = microseconds(info.tcpi_busy_time - info.tcpi_rwnd_limited),
                 .round_trip = microseconds(info.tcpi_min_rtt)};
}

Status send_all(int socket, std::span<const std::byte> bytes, Instant deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      FARPAGE_TRY(ready, wait_for(socket, POLLOUT, deadline));
      if (!ready) return fail(ErrorCode::kTimedOut, "send timed out");
    } else if (errno != EINTR) {
      return fail_errno("send");
    }
  }
  return {};
}

Status receive_all(int socket, std::span<std::byte> bytes, Instant deadline) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(socket, bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return fail(ErrorCode::kUnavailable, "the peer closed the connection");
    } else if (errno == EAGAIN) {
      FARPAGE_TRY(ready, wait_for(socket, POLLIN, deadline));
      if (!ready) return fail(ErrorCode::kTimedOut, "no answer in time");
    } else if (errno != EINTR) {
      return fail_errno("receive");
    }
  }
  return {};
}

std::string peer_name(int socket) {
  const auto peer = numeric_name(socket, ::getpeername);
  return peer ? fmt::format("{}:{}", peer->host, peer->port) : "unknown";
}

std::string peer_address(int socket) {
  const auto peer = numeric_name(socket, ::getpeername);
  return peer ? peer->host : std::string();
}

}  // namespace farpage::rdma::tcp
