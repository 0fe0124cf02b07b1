#include "cli/background.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "base/fd.h"
#include "cli/program.h"
#include "cli/signals.h"
#include "cli/subcommand.h"

namespace farpage::cli {
namespace {

void print_from(const Fd& log, off_t at) {
  std::array<char, 4096> text;
  for (ssize_t got = 0; (got = ::pread(log.get(), text.data(), text.size(), at)) > 0; at += got)
    fmt::print(stderr, "{}", std::string_view(text.data(), static_cast<size_t>(got)));
}

Status leave_terminal(const Fd& log) {
  if (::setsid() < 0) return fail_errno("setsid");
  FARPAGE_TRY(nothing, Fd::from_call(::open("/dev/null", O_RDWR | O_CLOEXEC), "/dev/null"));
  if (::dup2(nothing.get(), STDIN_FILENO) < 0 || ::dup2(nothing.get(), STDOUT_FILENO) < 0 ||
      ::dup2(log.get(), STDERR_FILENO) < 0)
    return fail_errno("dup2");
  return {};
}

}  // namespace

Result<int> run_in_background(
    const std::string& log,
    const std::function<Result<int>(const std::function<void()>& begun)>& work) {
  if (log.empty()) return work([] {});
  FARPAGE_TRY(
      file, Fd::from_call(::open(log.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600), log));
  const off_t at = ::lseek(file.get(), 0, SEEK_END);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail_errno("pipe");
  const Fd is_begun(ends[0]);
  Fd begun(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return fail_errno("fork");
  if (child == 0) {
    const Status left = leave_terminal(file);
    ::_exit(exit_status_of(left ? work([&] {
      constexpr char kBegun = 1;
      (void)!::write(begun.get(), &kBegun, 1);
      begun.reset();
    })
                                : Result<int>(tl::unexpected(left.error()))));
  }
  begun.reset();
  // For the child, while this process waits.
  FARPAGE_TRY(signals, block_signals({SIGINT, SIGTERM, SIGHUP}));
  std::array<pollfd, 2> fds{{{is_begun.get(), POLLIN, 0}, {signals.get(), POLLIN, 0}}};
  while (::poll(fds.data(), fds.size(), -1) < 0 || fds[0].revents == 0) {
    signalfd_siginfo info{};
    if (::read(signals.get(), &info, sizeof info) == sizeof info) (void)::kill(child, SIGTERM);
  }
  char byte = 0;
  const ssize_t got = ::read(is_begun.get(), &byte, 1);
  print_from(file, at);
  if (got == 1) return kExitOk;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kExitSignal + WTERMSIG(status);
}

}  // namespace farpage::cli
