#include "base/pidfd.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5, asm-generic/socket.h
#endif

namespace farpage {

bool has_ended(int pidfd, Milliseconds patience) {
  pollfd end{.fd = pidfd, .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&end, 1, static_cast<int>(patience.count()));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

void send_signal(int pidfd, int number) {
  (void)::syscall(SYS_pidfd_send_signal, pidfd, number, nullptr, 0);
}

Result<Fd> peer_process(int socket, pid_t pid) {
  int fd = -1;
  socklen_t length = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0) return Fd(fd);
  return Fd::from_call(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)),
                       "pidfd of the process that has connected");
}

}  // namespace farpage
