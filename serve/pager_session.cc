#include "serve/pager_session.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <optional>
#include <span>

#include "base/unix_socket.h"

namespace farpage::serve {
namespace {

constexpr Milliseconds kPatience{30'000};
constexpr timeval kConnectTimeout{.tv_sec = 30, .tv_usec = 0};
constexpr Milliseconds kAskAgain{1000};
constexpr Milliseconds kForever{-1};

tl::unexpected<Error> has_ended(const std::string& pager) {
  return fail(ErrorCode::kUnavailable, fmt::format("{} has ended", pager));
}

}  // namespace

Result<PagerSession> PagerSession::connect(const std::string& path, const std::string& subcommand) {
  const std::optional<sockaddr_un> address = unix_address(path);
  if (!address || path.empty())
    return fail(ErrorCode::kInvalid,
                fmt::format("--{}: a path of 1 to {} characters", subcommand, kMaxUnixPathBytes));
  FARPAGE_TRY(socket,
              Fd::from_call(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket(AF_UNIX)"));
  // connect(2) blocks while the listener's queue is full.
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kConnectTimeout,
                     sizeof kConnectTimeout);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    if (errno == ENOENT || errno == ECONNREFUSED)
      return fail(ErrorCode::kNotFound,
                  fmt::format("--{0}: no farpage {0} listens on {1}", subcommand, path));
    return fail_errno(fmt::format("--{}: connecting to {}", subcommand, path));
  }
  return PagerSession(std::move(socket), fmt::format("farpage {} on {}", subcommand, path),
                      kPatience);
}

PagerSession PagerSession::over(Fd socket) {
  return {std::move(socket), "the pager", kForever};
}

Status PagerSession::begin(const BeginRun& run, int handover_listener) {
  FARPAGE_TRY(answer, ask(run, kAccepted, handover_listener));
  return accepted_from_line(answer);
}

Result<RunReport> PagerSession::finish(int exit_status) {
  FARPAGE_TRY_VOID(send(FinishRun{exit_status}));
  FARPAGE_TRY(answer, read_answer(kReport, kForever));
  return report_from_line(answer.value());
}

Result<PagerStatus> PagerSession::status() {
  FARPAGE_TRY(answer, ask(AskStatus{}, kStatus));
  return status_from_line(answer);
}

Result<RunReport> PagerSession::report() {
  FARPAGE_TRY(answer, ask(AskReport{}, kReport));
  return report_from_line(answer);
}

Status PagerSession::upgrade(const Upgrade& upgrade) {
  FARPAGE_TRY(answer, ask(upgrade, kAccepted));
  return accepted_from_line(answer);
}

Result<std::string> PagerSession::ask(const PagerRequest& request, const char* member,
                                      int descriptor) {
  // Answers to a former question that was asked twice.
  while (true) {
    FARPAGE_TRY(more, receive(Milliseconds(0)));
    if (!more) break;
  }
  received_.clear();
  for (Milliseconds waited{0}; patience_ == kForever || waited < patience_; waited += kAskAgain) {
    FARPAGE_TRY_VOID(send(request, descriptor));
    FARPAGE_TRY(answer, read_answer(member, kAskAgain));
    if (answer) return *answer;
  }
  return fail(ErrorCode::kTimedOut, fmt::format("{} does not answer", pager_));
}

Status PagerSession::send(const PagerRequest& request, int descriptor) {
  const std::string line = to_line(request);
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t bytes = send_with_descriptor(
        socket_.get(), std::as_bytes(std::span(line).subspan(sent)), descriptor);
    if (bytes < 0 && (errno == EPIPE || errno == ECONNRESET)) return has_ended(pager_);
    if (bytes < 0) return fail_errno("sending to the pager");
    sent += static_cast<size_t>(bytes);
    descriptor = -1;
  }
  return {};
}

// Omits answers to questions that were asked twice.
Result<std::optional<std::string>> PagerSession::read_answer(const char* member,
                                                             Milliseconds patience) {
  const Instant deadline = SteadyClock::read() + patience;
  while (true) {
    for (size_t end = received_.find('\n'); end != std::string::npos; end = received_.find('\n')) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      if (is_answer(line, member)) return line;
    }
    const auto left = std::chrono::ceil<Milliseconds>(deadline - SteadyClock::read());
    if (patience != kForever && left.count() <= 0) return std::nullopt;
    FARPAGE_TRY(more, receive(patience == kForever ? kForever : left));
    if (!more) return std::nullopt;
  }
}

Result<bool> PagerSession::receive(Milliseconds patience) {
  pollfd poll{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  const int ready = ::poll(&poll, 1, static_cast<int>(patience.count()));
  if (ready == 0) return false;
  std::array<char, 65536> chunk;
  const ssize_t got =
      ready < 0 ? ready : ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
  if (got <= 0) return has_ended(pager_);
  received_.append(chunk.data(), static_cast<size_t>(got));
  return true;
}

}  // namespace farpage::serve
