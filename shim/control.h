// Control: the shim's end of the socket to the pager (uffd/handover.h, 1 and 2).
//
// Threads: one hand-over before any other call; then request() under the shim's lock.
#pragma once

#include <atomic>

#include "shim/syscalls.h"
#include "uffd/handover.h"

namespace farpage::shim {

// Sends kLifeline. Makes raw system calls only. Where the pager is gone, nobody has the descriptor.
void send_lifeline(int control_fd, int lifeline);

class Control {
 public:
  static constexpr int kWelcomeTimeoutSeconds = 30;
  // A live pager answers in microseconds, or in the time of one write-back. One that has not
  // answered by this deadline counts as dead.
  static constexpr int kReplyTimeoutSeconds = 60;

  constexpr Control() = default;
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Connects to `path`, sends Hello with both descriptors and waits for Welcome. If there is no
  // pager or it refuses, reports the reason on standard error and exits.
  void hand_over_or_exit(const char* path, const uffd::handover::Hello& hello, int userfault_fd,
                         int ring_fd);

  // As hand_over_or_exit(), in a forked child, over the socket that fork_begin() made for it.
  // Returns the userfaultfd, which comes with Welcome.
  int hand_over_child_or_exit(int socket, const uffd::handover::Hello& hello, int ring_fd);

  // Sends kForkBegin with one end of a new socket pair. `for_child` is the other end; the caller
  // closes it, whatever the result.
  long fork_begin(Span span, int& for_child);

  // Sends one request and returns the answer: 0, the pager's negative errno, or -EIO when the pager
  // is gone (reported once on standard error).
  long request(uffd::handover::RequestKind kind, Span span);

  // -1 without a connection. From any thread.
  int fd() const { return fd_.load(std::memory_order_relaxed); }
  // In a forked child: forgets the connection without telling the pager.
  void close();

 private:
  long exchange(uffd::handover::Request request, int descriptor);

  // Yama lets only ancestors read a process's memory, unless it names another one. The pager's
  // engine descends from the `farpage run` at the other end.
  void allow_reading() const;

  std::atomic<int> fd_{-1};
  int run_pid_ = 0;           // of that `farpage run`; 0: not in this PID namespace
  uint64_t last_number_ = 0;  // of a request
};

}  // namespace farpage::shim
