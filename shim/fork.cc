// fork() of a program that has far memory, and libc's functions that fork inside.
//
// Not here: vfork, posix_spawn, system, popen and clone with CLONE_VM share the memory until exec
// and need no handling. _Fork and a bare clone get SIGSEGV in the child (shim.h, invariant 3).
#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utmp.h>

#include "shim/descriptor.h"
#include "shim/report.h"
#include "shim/shim.h"

extern "C" pid_t __fork();  // libc's own, under its other public name

namespace farpage::shim {

using uffd::handover::RequestKind;

pid_t Shim::fork() {
  return userfault_.tells_of_forks() ? fork_shared() : fork_copied();
}

int Shim::refuse_fork(long reason) {
  if (reason != -EIO) {  // already reported
    Report()
        .text(
            "fork refused: part of this program's memory is on another machine, and a child would "
            "not have it; give the program more local memory (--local), let `farpage run` share or "
            "fetch the remote pages (--fork), or let the program start others with posix_spawn or "
            "vfork")
        .write();
  }
  // Not EAGAIN: shells retry it for minutes.
  errno = ENOMEM;
  return -1;
}

// The lock is not held while libc forks: handlers of pthread_atfork may wait for threads that map
// memory. Several threads may be here at once.
pid_t Shim::fork_copied() {
  {
    const Locked locked(lock_);
    if (forks_ == 0) {
      if (const long allowed = control_.request(RequestKind::kForkBegin, window_);
          is_error(allowed)) {
        return refuse_fork(allowed);
      }
      advise_all(MADV_DOFORK);
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
    advise_all(MADV_DONTFORK);
    control_.request(RequestKind::kForkDone, window_);
  }
  return child;
}

// One fork at a time: the event with the child's userfaultfd does not name the child.
pid_t Shim::fork_shared() {
  const Locked one_at_a_time(fork_lock_);
  int for_child = -1;
  {
    const Locked locked(lock_);
    const long allowed = control_.fork_begin(window_, for_child);
    if (is_error(allowed)) {
      system_call(SYS_close, for_child);
      return refuse_fork(allowed);
    }
    child_socket_.store(for_child, std::memory_order_relaxed);
    advise_all(MADV_DOFORK);
    keep_wishes_from_children();
    ++forks_;
  }
  const pid_t child = ::__fork();
  if (child == 0) {
    hand_over_after_fork(for_child);
    return 0;
  }
  const int saved_errno = errno;
  {
    const Locked locked(lock_);
    --forks_;
    advise_all(MADV_DONTFORK);
    control_.request(RequestKind::kForkDone, child > 0 ? window_ : Span{});
  }
  child_socket_.store(-1, std::memory_order_relaxed);
  system_call(SYS_close, for_child);
  errno = saved_errno;
  return child;
}

// In the child, which has one thread. The pager serves its far memory already; the child introduces
// itself and starts its own agent.
void Shim::hand_over_after_fork(int socket) {
  lock_.reset_after_fork();
  forks_ = 0;
  advise_all(MADV_DONTFORK);
  child_socket_.store(-1, std::memory_order_relaxed);
  control_.close();
  system_call(SYS_close, userfault_.fd);

  agent_.forget_after_fork();
  const long ring_fd = agent_.create_ring();
  if (is_error(ring_fd)) {
    Report().text("cannot create the agent's ring: ").error(ring_fd).write_and_exit();
  }
  userfault_.fd = move_out_of_the_way(
      control_.hand_over_child_or_exit(socket, make_hello(), static_cast<int>(ring_fd)));
  system_call(SYS_close, ring_fd);
  const long started = agent_.start(userfault_.fd, control_.fd());
  if (is_error(started)) {
    Report().text("cannot start the agent thread: ").error(started).write_and_exit();
  }
  // Locks and registered buffers stay with the parent. For ranges that the kernel has wiped here
  // the pager still has the parent's contents.
  locked_.remove(kEverything);
  registered_.remove(kEverything);
  future_lock_.store(0, std::memory_order_relaxed);
  // The kernel has not given these to this process.
  for (const Span outside : {Span{0, window_.begin}, Span{window_.end, kEverything.end}}) {
    for (Span part = childless_.first_in(outside); !part.empty();
         part = childless_.first_in(outside)) {
      control_.request(RequestKind::kRemoveExtent, part);
      extents_.remove(part);
      if (!childless_.remove(part)) {
        break;
      }
    }
  }
  wiped_.for_each_in(kEverything, [this](Span span) {
    control_.request(RequestKind::kDiscard, span);
    system_call(SYS_madvise, span.begin, span.bytes(), MADV_DONTNEED);
  });
}

// In the child, which has one thread. The inherited far memory is ordinary memory now
// (without fork events the kernel registers nothing for a child), and so is all that the child
// maps.
void Shim::forget_after_fork() {
  state_.store(State::kLocal, std::memory_order_release);
  control_.close();
  system_call(SYS_close, userfault_.fd);
  userfault_.fd = -1;
}

}  // namespace farpage::shim

namespace shim = farpage::shim;

FARPAGE_EXPORT pid_t fork() noexcept {
  return shim::shim.active() ? shim::shim.fork() : __fork();
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
