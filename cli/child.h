// Child: a child process, with its exit status and output.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"

namespace farpage::cli {

struct ChildOptions {
  std::vector<std::string> arguments;                            // arguments[0]: the file to run
  std::string name;                                              // argv[0]; empty: arguments[0]
  std::vector<std::pair<std::string, std::string>> environment;  // added to ours
  bool capture_output = false;                                   // standard output through a pipe
  bool own_process_group = false;  // signals of the terminal (Ctrl-C) do not reach it
};

// Threads: one. Destroying it ends the process (SIGTERM, then SIGKILL) and waits for it. The
// process also dies with this one: without its pager a target would wait for ever.
class Child {
 public:
  // kNotFound or kUnsupported when the kernel does not run the file; other codes: no process could
  // be created.
  static Result<Child> start(const ChildOptions& options);
  Child(Child&&) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable when it has ended
  void signal(int number) const;

  // Waits for its end: the exit status, or 128 + the signal, as in shells.
  int wait();
  // Valid after wait(): the peak resident memory of this process, or of the largest process that it
  // waited for. Pages of files and shared memory count too, and at least what this process had when
  // it started the child.
  uint64_t peak_resident_bytes() const { return peak_resident_bytes_; }
  // The next line of its standard output; kTimedOut, or kUnavailable when it closed it.
  Result<std::string> read_line(Milliseconds timeout);
  // SIGTERM, then SIGKILL after the time; returns its status.
  int stop(Milliseconds patience);

 private:
  Child(pid_t pid, Fd pidfd, Fd output)
      : pid_(pid), pidfd_(std::move(pidfd)), output_(std::move(output)) {}
  bool ended(Milliseconds timeout) const;

  pid_t pid_ = -1;
  Fd pidfd_;
  Fd output_;
  std::string buffered_;
  std::optional<int> status_;
  uint64_t peak_resident_bytes_ = 0;
};

}  // namespace farpage::cli
