// Signals as something to wait for.
#pragma once

#include <csignal>
#include <initializer_list>

#include "base/fd.h"
#include "base/result.h"

namespace farpage::cli {

// Blocks them in this thread, and in those that it starts: call it before any other thread starts.
// The descriptor (signalfd(2)) is readable when one is pending.
Result<Fd> block_signals(std::initializer_list<int> numbers);

// SIGINT and SIGTERM as a value to wait for.
// Create it before any other thread starts: threads inherit the signal mask, so only wait()
// receives the signals. A child process inherits it too: call unblock_in_child() before exec.
// Threads: the main thread; interrupt(): any.
class ShutdownSignals {
 public:
  static Result<ShutdownSignals> create();

  // Blocks until SIGINT or SIGTERM, and returns its number, or until interrupt(), and returns 0.
  // After the first signal, the next one ends the process by its default action.
  int wait();
  void interrupt() const;
  int descriptor() const { return arrived_.get(); }  // readable when a signal is pending
  // Whether a signal is pending that wait() would return.
  bool is_pending() const;

  // Restores the previous mask, between fork and exec. Async-signal-safe.
  void unblock_in_child() const;

 private:
  ShutdownSignals() = default;

  sigset_t signals_{};
  sigset_t before_{};
  Fd arrived_;     // signalfd
  Fd interrupts_;  // eventfd
};

}  // namespace farpage::cli
