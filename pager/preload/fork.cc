// fork() of a program that has far memory, and libc's functions that fork inside.
//
// Not here: vfork, posix_spawn, system, popen and clone with CLONE_VM share the memory until exec
// and need no help. _Fork and a bare clone get SIGSEGV in the child (shim.h, invariant 2).
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utmp.h>

#include "pager/preload/report.h"
#include "pager/preload/shim.h"

extern "C" pid_t __fork();  // libc's own, under its other public name

namespace farpage::preload {

using uffd::handover::RequestKind;

// The lock is not held while libc forks: other threads go on, and the child never sees it taken by
// a thread it does not have.
pid_t Shim::fork() {
  {
    const Locked locked(lock_);
    if (forks_ == 0) {
      if (const long allowed = control_.request(RequestKind::kForkBegin, window_);
          is_error(allowed)) {
        if (allowed != -EIO) {
          Report()
              .text(
                  "fork refused: part of this program's memory is on another machine, and a "
                  "child would not have it; give the program more local memory (--local), or let "
                  "it start others with posix_spawn or vfork")
              .write();
        }
        // Not EAGAIN: shells try again for minutes then.
        errno = ENOMEM;
        return -1;
      }
      system_call(SYS_madvise, window_.begin, window_.bytes(), MADV_DOFORK);
      keep_wishes_from_children();
    }
    ++forks_;
  }
  const pid_t child = ::__fork();
  if (child == 0) {
    forget_after_fork();
    return 0;
  }
  const Locked locked(lock_);
  if (--forks_ == 0) {
    system_call(SYS_madvise, window_.begin, window_.bytes(), MADV_DONTFORK);
    control_.request(RequestKind::kForkDone, window_);
  }
  return child;
}

// In the child, which has one thread: what it inherited of the window is ordinary memory now (the
// kernel registers nothing for a child that did not ask for fork events), and so is all that it
// maps.
void Shim::forget_after_fork() {
  state_.store(State::kLocal, std::memory_order_release);
  control_.close();
  system_call(SYS_close, userfault_.fd);
  userfault_.fd = -1;
}

}  // namespace farpage::preload

namespace preload = farpage::preload;

FARPAGE_EXPORT pid_t fork() noexcept {
  return preload::shim.active() ? preload::shim.fork() : __fork();
}

FARPAGE_EXPORT int daemon(int keep_directory, int keep_streams) noexcept {
  const pid_t child = fork();
  if (child != 0) {
    if (child > 0) {
      _exit(0);
    }
    return -1;
  }
  if (setsid() < 0 || (keep_directory == 0 && chdir("/") != 0)) {
    return -1;
  }
  if (keep_streams == 0) {
    const int null = open("/dev/null", O_RDWR);
    if (null < 0) {
      return -1;
    }
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
      dup2(null, stream);
    }
    if (null > STDERR_FILENO) {
      close(null);
    }
  }
  return 0;
}

FARPAGE_EXPORT int forkpty(int* terminal, char* name, const termios* settings,
                           const winsize* size) noexcept {
  int side_of_child = -1;
  if (openpty(terminal, &side_of_child, name, settings, size) != 0) {
    return -1;
  }
  const pid_t child = fork();
  if (child == 0) {
    close(*terminal);
    if (login_tty(side_of_child) != 0) {
      _exit(1);
    }
    return 0;
  }
  const int saved_errno = errno;
  close(side_of_child);
  if (child < 0) {
    close(*terminal);
  }
  errno = saved_errno;
  return child;
}
