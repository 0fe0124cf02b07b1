// Runs the farpage binary, or another one, as a child process, to test its output, signals and exit
// status.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>
#include <vector>

#include "base/fd.h"

namespace farpage::cli {

// Threads: one. The destructor kills and reaps the child.
class ChildProcess {
 public:
  explicit ChildProcess(std::vector<std::string> arguments, const char* program = FARPAGE_BINARY) {
    std::array<int, 2> out{};
    std::array<int, 2> err{};
    EXPECT_EQ(::pipe2(out.data(), O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(err.data(), O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    ::posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    arguments.insert(arguments.begin(), program);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&pid_, program, &actions, nullptr, argv.data(), environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    output_ = Fd(out[0]);
    problems_ = Fd(err[0]);
    ::close(out[1]);
    ::close(err[1]);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  // The next line of standard output; empty at its end.
  std::string read_line() {
    std::string line;
    char byte = 0;
    while (::read(output_.get(), &byte, 1) == 1 && byte != '\n') line += byte;
    return line;
  }
  // Reads standard error up to a line that contains `text`; false if it ends before.
  bool wait_for_log(const std::string& text) {
    std::string line;
    char byte = 0;
    while (::read(problems_.get(), &byte, 1) == 1) {
      line += byte;
      if (byte != '\n') continue;
      log_ += line;
      if (line.find(text) != std::string::npos) return true;
      line.clear();
    }
    return false;
  }

  void send(int signal_number) const { ::kill(pid_, signal_number); }

  // Waits for the child to end. Returns the exit status, or 128 + the signal. Afterwards output()
  // and log() are complete.
  int wait() {
    drain();
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  const std::string& output() const { return all_output_; }
  const std::string& log() const { return log_; }

 private:
  // Reads both pipes at once: a child blocks when one of them is full.
  void drain() {
    std::array<pollfd, 2> sources{{{output_.get(), POLLIN, 0}, {problems_.get(), POLLIN, 0}}};
    std::array<std::string*, 2> texts{&all_output_, &log_};
    while (sources[0].fd >= 0 || sources[1].fd >= 0) {
      ::poll(sources.data(), sources.size(), -1);
      for (size_t i = 0; i < sources.size(); ++i) {
        if (sources[i].fd < 0 || sources[i].revents == 0) continue;
        std::array<char, 4096> bytes;
        const ssize_t got = ::read(sources[i].fd, bytes.data(), bytes.size());
        if (got <= 0)
          sources[i].fd = -1;
        else
          texts[i]->append(bytes.data(), static_cast<size_t>(got));
      }
    }
  }

  pid_t pid_ = -1;
  Fd output_;
  Fd problems_;
  std::string all_output_;
  std::string log_;
};

}  // namespace farpage::cli
