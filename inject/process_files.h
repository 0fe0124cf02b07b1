// ProcessFiles: the directory of one process in /proc, and its pidfd. Both stand for the same
// process: once that has ended, every call fails, even if another one has its id by then.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace farpage::inject {

// Threads: any.
class ProcessFiles {
 public:
  // kNotFound: no such process, or it has ended. kInvalid: the id of a thread.
  static Result<ProcessFiles> open(pid_t pid);

  pid_t pid() const { return pid_; }
  const Fd& pidfd() const { return pidfd_; }
  Fd take_pidfd() && { return std::move(pidfd_); }
  // Has not ended; a zombie has.
  bool alive() const;

  // `path` within the directory.
  Result<std::string> read(const std::string& path) const;
  Result<Fd> open_file(const std::string& path, int flags) const;
  Result<std::vector<pid_t>> threads() const;
  // The value of a field of `path`, which is "status" or "task/ID/status". nullopt: none.
  std::optional<std::string> status_field(const std::string& path, std::string_view name) const;
  // The name of this process; "?" if it has ended.
  std::string name() const;

  // For messages: "process 12 (redis-server)".
  std::string described() const;

 private:
  ProcessFiles(pid_t pid, Fd pidfd, Fd directory)
      : pid_(pid), pidfd_(std::move(pidfd)), directory_(std::move(directory)) {}

  pid_t pid_ = 0;
  Fd pidfd_;
  Fd directory_;
};

// For messages about another process: its name, "?" if there is none.
std::string process_name(pid_t pid);

}  // namespace farpage::inject
