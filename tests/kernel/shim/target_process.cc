#include "target_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>

#include "base/check.h"

namespace farpage::test {
namespace {

std::pair<Fd, Fd> create_pipe() {
  int ends[2];
  FARPAGE_CHECK(pipe2(ends, O_CLOEXEC) == 0, "pipe2: errno %d", errno);
  return {Fd(ends[0]), Fd(ends[1])};
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& string : strings) {
    pointers.push_back(string.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_with(const TargetProcess::Environment& changes) {
  std::map<std::string, std::string> merged;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const size_t equals = text.find('=');
    merged[text.substr(0, equals)] = equals == std::string::npos ? "" : text.substr(equals + 1);
  }
  for (const auto& [name, value] : changes) {
    merged[name] = value;
  }
  std::vector<std::string> lines;
  lines.reserve(merged.size());
  for (const auto& [name, value] : merged) {
    lines.push_back(name);
    lines.back().append("=").append(value);
  }
  return lines;
}

}  // namespace

TargetProcess::TargetProcess(const std::vector<std::string>& command, const Environment& changes) {
  auto [child_input, input] = create_pipe();
  auto [output, child_output] = create_pipe();
  input_ = std::move(input);
  output_ = std::move(output);
  errors_ = Fd(memfd_create("errors", MFD_CLOEXEC));

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, child_input.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, child_output.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, errors_.get(), STDERR_FILENO);
  std::vector<std::string> arguments = command;
  std::vector<std::string> environment = environment_with(changes);
  const int error = posix_spawnp(&pid_, arguments[0].c_str(), &actions, nullptr,
                                 pointers_to(arguments).data(), pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  FARPAGE_CHECK(error == 0, "cannot start %s: errno %d", arguments[0].c_str(), error);
}

TargetProcess::~TargetProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

std::string TargetProcess::read_line() {
  for (;;) {
    const size_t newline = unread_.find('\n');
    if (newline != std::string::npos) {
      std::string line = unread_.substr(0, newline);
      unread_.erase(0, newline + 1);
      return line;
    }
    char buffer[4096];
    const ssize_t got = read(output_.get(), buffer, sizeof(buffer));
    if (got <= 0) {
      return std::exchange(unread_, {});
    }
    unread_.append(buffer, static_cast<size_t>(got));
  }
}

void TargetProcess::write_line(const std::string& line) {
  const std::string text = line + "\n";
  FARPAGE_CHECK(write(input_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()),
                "write to the target: errno %d", errno);
}

std::string TargetProcess::take_errors() {
  std::string text;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = pread(errors_.get(), buffer, sizeof(buffer), static_cast<off_t>(text.size()))) >
         0) {
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

TargetProcess::Outcome TargetProcess::finish() {
  input_.reset();
  Outcome outcome;
  char buffer[65536];
  outcome.output = std::exchange(unread_, {});
  ssize_t got = 0;
  while ((got = read(output_.get(), buffer, sizeof(buffer))) > 0) {
    outcome.output.append(buffer, static_cast<size_t>(got));
  }
  int status = 0;
  FARPAGE_CHECK(waitpid(pid_, &status, 0) == pid_, "waitpid: errno %d", errno);
  pid_ = -1;
  outcome.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  outcome.errors = take_errors();
  return outcome;
}

}  // namespace farpage::test
