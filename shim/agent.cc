#include "shim/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "shim/control.h"
#include "shim/lock.h"

namespace farpage::shim {

namespace handover = uffd::handover;

namespace {

constexpr uint64_t kStackBytes = 64 << 10;

}  // namespace

void Agent::forget_after_fork() {
  commands_.forget_after_fork();
}

long Agent::start(int userfault_fd, int control_fd) {
  userfault_fd_ = userfault_fd;
  control_fd_ = control_fd;
  const long stack = system_call(SYS_mmap, nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (is_error(stack)) {
    return stack;
  }
  system_call(SYS_mprotect, stack, kPageBytes, PROT_NONE);  // guard page
  system_call(SYS_madvise, stack, kStackBytes, MADV_DONTFORK);
  // The thread inherits the blocked signals. No CLONE_FILES: a descriptor table of its own.
  const SignalsBlocked blocked;
  const int saved_errno = errno;
  const int thread =
      clone(&Agent::thread_main, reinterpret_cast<char*>(stack) + kStackBytes,
            CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM, this);
  const long result = thread < 0 ? -errno : 0;
  errno = saved_errno;
  return result;
}

int Agent::thread_main(void* self) {
  Agent& agent = *static_cast<Agent*>(self);
  system_call(SYS_prctl, PR_SET_NAME, handover::kAgentName, 0, 0, 0);
  agent.commands_.prepare();
  agent.keep_descriptors();
  agent.end_with_the_pager();
  agent.commands_.run(agent.userfault_fd_);
  return 0;  // never: nobody ends it
}

// Closes all other inherited descriptors: a pipe's reader waits until the last writer has closed.
void Agent::keep_descriptors() const {
  uint32_t from = 0;
  for (;;) {
    uint32_t next_kept = UINT32_MAX;
    for (const int kept : {userfault_fd_, control_fd_}) {
      const uint32_t fd = static_cast<uint32_t>(kept);
      next_kept = fd >= from && fd < next_kept ? fd : next_kept;
    }
    if (next_kept > from) {
      const uint32_t last = next_kept == UINT32_MAX ? UINT32_MAX : next_kept - 1;
      system_call(SYS_close_range, from, last, 0);
    }
    if (next_kept == UINT32_MAX) {
      return;
    }
    from = next_kept + 1;
  }
}

// The kernel signals the owner of a socket with O_ASYNC when its other end is closed. The pair is
// made here, so that no table but this one ever has this end: a child or a program after exec must
// not be killed in place of this process. Without it (no descriptors are left) the process stalls
// when the pager dies.
void Agent::end_with_the_pager() const {
  int pair[2] = {-1, -1};
  const long paired = system_call(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
                                  static_cast<int*>(pair));
  if (is_error(paired)) {
    return;
  }
  send_lifeline(control_fd_, pair[1]);
  system_call(SYS_close, pair[1]);
  // Armed only now: when an exec ends this thread, the kernel closes what it has, the last one
  // first, and the program would be killed for an end that is still here.
  const long self = system_call(SYS_getpid);
  const long flags = system_call(SYS_fcntl, pair[0], F_GETFL);
  system_call(SYS_fcntl, pair[0], F_SETSIG, SIGKILL);
  system_call(SYS_fcntl, pair[0], F_SETOWN, self);
  system_call(SYS_fcntl, pair[0], F_SETFL, flags | O_ASYNC);
  char nothing = 0;
  if (system_call(SYS_recvfrom, pair[0], &nothing, sizeof(nothing), MSG_DONTWAIT, nullptr,
                  nullptr) != -EAGAIN) {
    system_call(SYS_kill, self, SIGKILL);  // the pager was gone before
  }
}

}  // namespace farpage::shim
