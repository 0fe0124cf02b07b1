// The directory of a `farpage run`, which holds its hand-over socket, and how others find it.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "base/fd.h"
#include "base/result.h"

namespace farpage::cli {

// Only this user may enter it. Its name carries the process id: farpage-run-PID-XXXXXX, in
// $XDG_RUNTIME_DIR or /tmp. Gone with the object.
class RunDirectory {
 public:
  static Result<RunDirectory> create();
  RunDirectory(RunDirectory&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  RunDirectory& operator=(RunDirectory&&) = delete;
  ~RunDirectory();

  std::string socket_path() const;

 private:
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// A connection to the `farpage run` with this process id, or to the nearest one that has started
// `pid`. kNotFound: there is none. kDenied: it is another user's.
Result<Fd> connect_to_run(pid_t pid);

}  // namespace farpage::cli
