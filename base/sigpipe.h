// SigpipeHeldBack: for libraries that write to sockets without MSG_NOSIGNAL.
#pragma once

#include <csignal>
#include <ctime>

namespace farpage {

// While it lives, a write of this thread to a pipe or socket that the other end has closed is
// EPIPE, and no signal. What signals do is up to the program, so the process's disposition is left
// alone. Threads: it belongs to the one that made it.
class SigpipeHeldBack {
 public:
  SigpipeHeldBack() {
    ::sigemptyset(&sigpipe_);
    ::sigaddset(&sigpipe_, SIGPIPE);
    sigset_t pending;
    was_pending_ = ::sigpending(&pending) == 0 && ::sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  SigpipeHeldBack(const SigpipeHeldBack&) = delete;
  SigpipeHeldBack& operator=(const SigpipeHeldBack&) = delete;
  ~SigpipeHeldBack() {
    const timespec now{};
    if (!was_pending_) static_cast<void>(::sigtimedwait(&sigpipe_, nullptr, &now));
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t sigpipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace farpage
