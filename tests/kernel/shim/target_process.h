// TargetProcess: a program started by a test, with its standard streams in the test's hands.
//
// Threads: one, the test's.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"

namespace farpage::test {

class TargetProcess {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;

  // Starts `command`; `changes` are put on top of this process's environment.
  TargetProcess(const std::vector<std::string>& command, const Environment& changes);
  ~TargetProcess();
  TargetProcess(const TargetProcess&) = delete;
  TargetProcess& operator=(const TargetProcess&) = delete;

  pid_t pid() const { return pid_; }
  // The next line of its output, empty at the end.
  std::string read_line();
  void write_line(const std::string& line);

  struct Outcome {
    int exit_status = -1;  // -1: killed by `signal`
    int signal = 0;
    std::string output;  // what read_line has not taken
    std::string errors;
  };
  // Closes its input and waits for its end.
  Outcome finish();

 private:
  std::string take_errors();

  pid_t pid_ = -1;
  Fd input_;
  Fd output_;
  Fd errors_;  // a memfd: nobody has to read it meanwhile
  std::string unread_;
};

}  // namespace farpage::test
