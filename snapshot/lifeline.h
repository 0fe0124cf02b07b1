// Lifeline: ends a process, the VMM of a guest, when nobody is left who could serve its memory:
// when the last process that has these descriptors is gone, whichever way they were killed. Where
// all copies of a userfaultfd are closed, missing pages read as zeros; so the VMM has its SIGKILL
// before that, and no thread of it gets back to its own code.
//
// A pipe without a writer sends a signal to the owner of its other end (fcntl(2), F_SETSIG). When
// the last table of descriptors goes, all of it is closed, and only then what was in flight in the
// sockets of it (the kernel releases files in rounds). So the reading end, and a copy of the
// userfaultfd, are in flight in a socket: the writing end goes before both.
#pragma once

#include <sys/types.h>

#include <array>

#include "base/fd.h"
#include "base/result.h"

namespace farpage::snapshot {

// Threads: one at a time. Its end lets the process live. Of one that was not tied, the descriptors
// may be closed in any order.
class Lifeline {
 public:
  static constexpr size_t kDescriptors = 3;

  // Not tied to a process.
  static Result<Lifeline> create(int userfaultfd);
  // Of a predecessor: what descriptors() had. It was tied, or not.
  static Lifeline adopt(const std::array<int, kDescriptors>& descriptors);
  // From now on. `pid` is the number of the process of `pidfd`. Again is no change.
  Status tie(int pidfd, pid_t pid) const;

  std::array<int, kDescriptors> descriptors() const {
    return {writer_.get(), holder_.get(), sender_.get()};
  }

 private:
  Lifeline(Fd writer, Fd holder, Fd sender)
      : writer_(std::move(writer)), holder_(std::move(holder)), sender_(std::move(sender)) {}

  // Closed from the last to the first: without the reading end, that of the writer does nothing.
  Fd writer_;  // of the pipe
  Fd holder_;  // the socket in which the reading end and the userfaultfd are
  Fd sender_;  // its other end
};

}  // namespace farpage::snapshot
