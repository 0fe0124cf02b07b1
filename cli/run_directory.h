// The directory of a `farpage run`, which holds its hand-over socket, and how others find it.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "base/fd.h"
#include "base/result.h"

namespace farpage::cli {

// Only this user may enter it. Its name carries the process id: farpage-run-PID-XXXXXX, in
// $XDG_RUNTIME_DIR or /tmp. Gone with the object. One whose process was killed is left behind; the
// next create() of that user removes it. It is known by its lock, which ends with the process (the
// same id may live in another PID namespace). Not to be shared by two kernels.
class RunDirectory {
 public:
  static Result<RunDirectory> create();
  RunDirectory(RunDirectory&& other) noexcept
      : path_(std::exchange(other.path_, "")), lock_(std::move(other.lock_)) {}
  RunDirectory& operator=(RunDirectory&&) = delete;
  ~RunDirectory();

  std::string socket_path() const;

 private:
  RunDirectory(std::string path, Fd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  Fd lock_;
};

// A connection to the `farpage run` with this process id, or to the nearest one that has started
// `pid`. kNotFound: there is none. kDenied: it is another user's.
Result<Fd> connect_to_run(pid_t pid);

}  // namespace farpage::cli
