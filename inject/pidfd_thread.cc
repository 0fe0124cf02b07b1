#include "inject/pidfd_thread.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace farpage::inject {

Result<Fd> open_thread(pid_t thread) {
  return Fd::from_call(static_cast<int>(::syscall(SYS_pidfd_open, thread, kPidfdThread)),
                       "pidfd_open of a thread");
}

Result<Fd> take_descriptor(const Fd& thread, int fd) {
  return Fd::from_call(static_cast<int>(::syscall(SYS_pidfd_getfd, thread.get(), fd, 0)),
                       "pidfd_getfd");
}

Status await_end(const Fd& thread, int timeout_ms) {
  pollfd ended{thread.get(), POLLIN, 0};
  int ready = 0;
  do ready = ::poll(&ended, 1, timeout_ms);
  while (ready < 0 && errno == EINTR);
  if (ready < 0) return fail_errno("poll of a thread");
  if (ready == 0) return fail(ErrorCode::kTimedOut, "the thread has not ended");
  return {};
}

void kill_process(const Fd& process) {
  (void)::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
}

}  // namespace farpage::inject
