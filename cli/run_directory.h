// The directory of a `farpage run` with its hand-over socket, and how other processes find it.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "base/fd.h"
#include "base/result.h"

namespace farpage::cli {

// Only this user may enter it. Its name is farpage-run-PID-XXXXXX, in $XDG_RUNTIME_DIR or /tmp. The
// destructor removes it. If the process was killed, the next create() of that user removes it. Such
// a directory is recognised by its lock, which the kernel releases when the process ends; its PID
// may exist in another PID namespace. Two kernels must not share the parent directory.
class RunDirectory {
 public:
  static Result<RunDirectory> create();
  RunDirectory(RunDirectory&& other) noexcept
      : path_(std::exchange(other.path_, "")), lock_(std::move(other.lock_)) {}
  RunDirectory& operator=(RunDirectory&&) = delete;
  ~RunDirectory();

  std::string socket_path() const;
  // For a socket on which `farpage attach` to this process listens.
  std::string attached_path(pid_t pid) const;

 private:
  RunDirectory(std::string path, Fd lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  Fd lock_;
};

// A connection to the hand-over socket of the `farpage run` or `farpage attach` with this process
// id, of that which is attached to it, or of the nearest ancestor of `pid` that is one. kNotFound:
// there is none. kDenied: it belongs to another user.
Result<Fd> connect_to_run(pid_t pid);

// What `farpage attach` to this process has made by attached_path(). kNotFound: none is attached.
Result<std::string> find_attached(pid_t pid);

}  // namespace farpage::cli
