#include "serve/pager_session.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <optional>
#include <span>

#include "base/unix_socket.h"

namespace farpage::serve {
namespace {

constexpr timeval kAnswerTimeout{.tv_sec = 30, .tv_usec = 0};
constexpr timeval kNoTimeout{.tv_sec = 0, .tv_usec = 0};

tl::unexpected<Error> has_ended(const std::string& path) {
  return fail(ErrorCode::kUnavailable, fmt::format("the pager on {} has ended", path));
}

}  // namespace

Result<PagerSession> PagerSession::connect(const std::string& path) {
  const std::optional<sockaddr_un> address = unix_address(path);
  if (!address || path.empty())
    return fail(ErrorCode::kInvalid,
                fmt::format("--pager: a path of 1 to {} characters", kMaxUnixPathBytes));
  FARPAGE_TRY(socket,
              Fd::from_call(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket(AF_UNIX)"));
  // Limits connect(2), too: it blocks while the listener's queue is full.
  for (const int option : {SO_SNDTIMEO, SO_RCVTIMEO})
    (void)::setsockopt(socket.get(), SOL_SOCKET, option, &kAnswerTimeout, sizeof kAnswerTimeout);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    if (errno == ENOENT || errno == ECONNREFUSED)
      return fail(ErrorCode::kNotFound,
                  fmt::format("--pager: no farpage pager listens on {}", path));
    return fail_errno(fmt::format("--pager: connecting to {}", path));
  }
  return PagerSession(std::move(socket), path);
}

Status PagerSession::begin(const BeginRun& run, int handover_listener) {
  FARPAGE_TRY(answer, ask(run, handover_listener));
  return accepted_from_line(answer);
}

Result<RunReport> PagerSession::finish(int exit_status) {
  (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &kNoTimeout, sizeof kNoTimeout);
  FARPAGE_TRY(answer, ask(FinishRun{exit_status}));
  return report_from_line(answer);
}

Result<PagerStatus> PagerSession::status() {
  FARPAGE_TRY(answer, ask(AskStatus{}));
  return status_from_line(answer);
}

Status PagerSession::upgrade(const Upgrade& upgrade) {
  FARPAGE_TRY(answer, ask(upgrade));
  return accepted_from_line(answer);
}

Result<std::string> PagerSession::ask(const PagerRequest& request, int descriptor) {
  const std::string line = to_line(request);
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t bytes = send_with_descriptor(
        socket_.get(), std::as_bytes(std::span(line).subspan(sent)), descriptor);
    if (bytes < 0 && (errno == EPIPE || errno == ECONNRESET)) return has_ended(path_);
    if (bytes < 0) return fail_errno("sending to the pager");
    sent += static_cast<size_t>(bytes);
    descriptor = -1;
  }
  return read_line();
}

Result<std::string> PagerSession::read_line() {
  while (true) {
    const size_t end = received_.find('\n');
    if (end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    std::array<char, 65536> chunk;
    const ssize_t got = ::recv(socket_.get(), chunk.data(), chunk.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN)
      return fail(ErrorCode::kTimedOut, fmt::format("the pager on {} does not answer", path_));
    if (got <= 0) return has_ended(path_);
    received_.append(chunk.data(), static_cast<size_t>(got));
  }
}

}  // namespace farpage::serve
