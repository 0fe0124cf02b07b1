#include "inject/pidfd_thread.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace farpage::inject {

Result<Fd> open_thread(pid_t thread) {
  return Fd::from_call(static_cast<int>(::syscall(SYS_pidfd_open, thread, kPidfdThread)),
                       "pidfd_open of a thread");
}

Result<Fd> take_descriptor(const Fd& thread, int fd) {
  return Fd::from_call(static_cast<int>(::syscall(SYS_pidfd_getfd, thread.get(), fd, 0)),
                       "pidfd_getfd");
}

}  // namespace farpage::inject
