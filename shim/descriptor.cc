#include "shim/descriptor.h"

#include <fcntl.h>
#include <sys/resource.h>

#include "shim/syscalls.h"

namespace farpage::shim {

int move_out_of_the_way(int fd) {
  // Not higher than this: the kernel's table grows with the highest number.
  constexpr rlim_t kHighest = 1000;
  rlimit limit{};
  if (is_error(system_call(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &limit)) ||
      limit.rlim_cur < 32) {
    return fd;
  }
  const rlim_t from = limit.rlim_cur - 16 < kHighest ? limit.rlim_cur - 16 : kHighest;
  const long moved = system_call(SYS_fcntl, fd, F_DUPFD_CLOEXEC, from);
  if (is_error(moved)) {
    return fd;
  }
  system_call(SYS_close, fd);
  return static_cast<int>(moved);
}

}  // namespace farpage::shim
