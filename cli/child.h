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
  std::vector<std::pair<std::string, std::string>> environment;  // added to the parent's
  bool capture_output = false;                                   // read standard output via a pipe
  bool own_process_group = false;  // signals of the terminal (Ctrl-C) do not reach it
  bool waits = false;              // for open_gate()
};

// Threads: one. The destructor ends the process (SIGTERM, then SIGKILL) and waits for it. The child
// also dies with its parent: without a pager, a fault of a target would block forever.
class Child {
 public:
  // kNotFound or kUnsupported: the kernel cannot execute the file. Other codes: the process could
  // not be created.
  static Result<Child> start(const ChildOptions& options);
  Child(Child&&) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();

  // Of a child that waits for it: has it execute the file.
  void open_gate() { gate_.reset(); }
  // After open_gate(): waits until it has executed the file, or has ended. As start().
  Status await_exec();

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable after the child has ended
  bool has_ended() const { return ended(Milliseconds(0)); }
  void signal(int number) const;

  // Waits for the child to end. Returns the exit status, or 128 + the signal, as shells do.
  int wait();
  // Valid after wait(): the peak resident memory of the child, or of the largest process that it
  // waited for, including file and shared pages. It is at least what the parent had resident when
  // it started the child.
  uint64_t peak_resident_bytes() const { return peak_resident_bytes_; }
  // The next line of its standard output. kUnavailable: the child has closed it. kTimedOut.
  Result<std::string> read_line(Milliseconds timeout);
  // Sends SIGTERM, then SIGKILL after `patience`. Returns the same status as wait().
  int stop(Milliseconds patience);

 private:
  Child(pid_t pid, std::string file) : pid_(pid), file_(std::move(file)) {}
  bool ended(Milliseconds timeout) const;

  pid_t pid_ = -1;
  std::string file_;
  Fd pidfd_;
  Fd output_;
  Fd gate_;     // its end lets the child execute the file
  Fd problem_;  // why it could not
  std::string buffered_;
  std::optional<int> status_;
  uint64_t peak_resident_bytes_ = 0;
};

}  // namespace farpage::cli
