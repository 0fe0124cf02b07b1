#include "cli/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "cli/subcommand.h"

namespace farpage::cli {
namespace {

constexpr Milliseconds kStopPatience{5000};

// While the caller's blocked signals are blocked here too: a Ctrl-C after the fork may have come
// for the former group, and would kill the child as soon as it is let through.
void leave_group_of_terminal() {
  ::setpgid(0, 0);
  for (const int number : {SIGINT, SIGQUIT})
    ::signal(number, ::signal(number, SIG_IGN));  // ignoring it discards a pending one
}

// Runs in the child between fork and exec: system calls only. Writes errno to `problem` on failure.
[[noreturn]] void become(const ChildOptions& options, const std::vector<char*>& arguments,
                         const std::vector<char*>& environment, pid_t parent, int output, int gate,
                         int problem) {
  if (options.own_process_group) leave_group_of_terminal();
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (output >= 0) ::dup2(output, STDOUT_FILENO);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  char end = 0;
  (void)!::read(gate, &end, 1);  // until open_gate(), or the end of the parent
  if (::getppid() == parent)
    ::execve(options.arguments[0].c_str(), arguments.data(), environment.data());
  const int sys_errno = errno;
  (void)!::write(problem, &sys_errno, sizeof sys_errno);
  ::_exit(127);
}

std::vector<std::string> merged_environment(const ChildOptions& options) {
  std::vector<std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const std::string name = text.substr(0, text.find('='));
    const bool replaced = std::ranges::any_of(
        options.environment, [&](const auto& variable) { return variable.first == name; });
    if (!replaced) merged.push_back(text);
  }
  for (const auto& [name, value] : options.environment)
    merged.push_back(fmt::format("{}={}", name, value));
  return merged;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct Pipe {
  Fd read;
  Fd write;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail_errno("pipe");
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

}  // namespace

Result<Child> Child::start(const ChildOptions& options) {
  std::vector<std::string> arguments = options.arguments;
  std::string file = arguments.at(0);
  if (!options.name.empty()) arguments[0] = options.name;
  std::vector<std::string> environment = merged_environment(options);
  const std::vector<char*> argument_pointers = pointers_to(arguments);
  const std::vector<char*> environment_pointers = pointers_to(environment);
  FARPAGE_TRY(gate, make_pipe());
  FARPAGE_TRY(problem, make_pipe());
  Pipe output;
  if (options.capture_output) {
    FARPAGE_TRY(made, make_pipe());
    output = std::move(made);
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return fail_errno("fork");
  if (pid == 0) {
    gate.write.reset();
    become(options, argument_pointers, environment_pointers, parent, output.write.get(),
           gate.read.get(), problem.write.get());
  }
  Child child(pid, std::move(file));
  child.pidfd_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  child.output_ = std::move(output.read);
  child.gate_ = std::move(gate.write);
  child.problem_ = std::move(problem.read);
  problem.write.reset();
  if (options.waits) return child;
  child.open_gate();
  FARPAGE_TRY_VOID(child.await_exec());
  return child;
}

Status Child::await_exec() {
  int sys_errno = 0;
  const ssize_t got = ::read(problem_.get(), &sys_errno, sizeof sys_errno);
  problem_.reset();
  if (got != sizeof sys_errno) return {};
  wait();
  const ErrorCode code = sys_errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kUnsupported;
  return tl::unexpected(Error{code, "running " + file_, sys_errno});
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      file_(std::move(other.file_)),
      pidfd_(std::move(other.pidfd_)),
      output_(std::move(other.output_)),
      gate_(std::move(other.gate_)),
      problem_(std::move(other.problem_)),
      buffered_(std::move(other.buffered_)),
      status_(other.status_),
      peak_resident_bytes_(other.peak_resident_bytes_) {}

Child::~Child() {
  if (pid_ > 0 && !status_) stop(kStopPatience);
}

void Child::signal(int number) const {
  if (pid_ > 0 && !status_) ::kill(pid_, number);
}

bool Child::ended(Milliseconds timeout) const {
  if (status_) return true;
  pollfd poll{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&poll, 1, static_cast<int>(timeout.count())) > 0;
}

int Child::wait() {
  if (status_) return *status_;
  int raw = 0;
  rusage usage{};
  pid_t waited = -1;
  do {
    waited = ::wait4(pid_, &raw, 0, &usage);
  } while (waited < 0 && errno == EINTR);
  if (waited < 0) raw = W_EXITCODE(kExitFailure, 0);  // no child any more: its status is unknown
  peak_resident_bytes_ = static_cast<uint64_t>(usage.ru_maxrss) << 10;
  status_ = WIFSIGNALED(raw) ? kExitSignal + WTERMSIG(raw) : WEXITSTATUS(raw);
  return *status_;
}

int Child::stop(Milliseconds patience) {
  if (status_) return *status_;
  signal(SIGTERM);
  if (!ended(patience)) signal(SIGKILL);
  return wait();
}

Result<std::string> Child::read_line(Milliseconds timeout) {
  const Instant deadline = SteadyClock::read() + timeout;
  while (true) {
    const size_t end = buffered_.find('\n');
    if (end != std::string::npos) {
      std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    const auto left = std::chrono::duration_cast<Milliseconds>(deadline - SteadyClock::read());
    pollfd poll{.fd = output_.get(), .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || ::poll(&poll, 1, static_cast<int>(left.count())) == 0)
      return fail(ErrorCode::kTimedOut, "no line was printed in time");
    std::array<char, 4096> chunk;
    const ssize_t got = ::read(output_.get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return fail(ErrorCode::kUnavailable, "it ended before it was ready");
    buffered_.append(chunk.data(), static_cast<size_t>(got));
  }
}

}  // namespace farpage::cli
