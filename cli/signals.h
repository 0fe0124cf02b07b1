// SIGINT and SIGTERM as a value to wait for.
#pragma once

#include <csignal>

#include "base/fd.h"
#include "base/result.h"

namespace farpage::cli {

// Create it before any other thread starts: threads inherit the blocked signals, so only wait()
// receives them. A child process inherits them too: call unblock_in_child() before exec.
// Threads: the main thread; interrupt() any.
class ShutdownSignals {
 public:
  static Result<ShutdownSignals> create();

  // Sleeps until SIGINT or SIGTERM and returns which, or until interrupt() and returns 0. After a
  // signal the next one ends the process at once, by its default action.
  int wait();
  void interrupt() const;
  // One has arrived and wait() would return it.
  bool is_pending() const;

  // Between fork and exec: the mask as it was before. Async-signal-safe.
  void unblock_in_child() const;

 private:
  ShutdownSignals() = default;

  sigset_t signals_{};
  sigset_t before_{};
  Fd arrived_;     // signalfd
  Fd interrupts_;  // eventfd
};

}  // namespace farpage::cli
