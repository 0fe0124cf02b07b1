// Control: the shim's end of the socket to the pager (uffd/handover.h, 1 and 2).
//
// Threads: hand_over once, before all else; then request() under the shim's lock.
#pragma once

#include <atomic>

#include "pager/preload/syscalls.h"
#include "uffd/handover.h"

namespace farpage::preload {

class Control {
 public:
  static constexpr int kWelcomeTimeoutSeconds = 30;
  // A pager that lives answers in microseconds, or in the time of one write-back; one that has not
  // answered by then is taken for dead.
  static constexpr int kReplyTimeoutSeconds = 60;

  constexpr Control() = default;
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Connects to `path`, sends Hello with both descriptors and waits for Welcome. Says why on
  // standard error and ends the process when there is no pager or it refuses.
  void hand_over_or_exit(const char* path, const uffd::handover::Hello& hello, int userfault_fd,
                         int ring_fd);

  // In a forked child, over the socket that fork_begin() made for it: as hand_over_or_exit(), but
  // the userfaultfd comes with Welcome. Returns it.
  int hand_over_child_or_exit(int socket, const uffd::handover::Hello& hello, int ring_fd);

  // kForkBegin with one end of a new socket pair. `for_child` is the other one, to be closed by the
  // caller, whatever the result.
  long fork_begin(Span span, int& for_child);

  // One request and its answer: 0, the pager's negative errno, or -EIO when the pager is gone,
  // which is said once on standard error.
  long request(uffd::handover::RequestKind kind, Span span);

  // -1 without a connection. From any thread.
  int fd() const { return fd_.load(std::memory_order_relaxed); }
  // In a forked child: forgets the connection without telling the pager.
  void close();

 private:
  long exchange(const uffd::handover::Request& request, int descriptor);

  std::atomic<int> fd_{-1};
};

}  // namespace farpage::preload
