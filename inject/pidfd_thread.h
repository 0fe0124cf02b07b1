// pidfds of threads and descriptors of other processes; the C library of the build host may be
// older.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include "base/fd.h"
#include "base/result.h"

namespace farpage::inject {

inline constexpr unsigned kPidfdThread = O_EXCL;  // PIDFD_THREAD, Linux 6.9

Result<Fd> open_thread(pid_t thread);
// A copy of the descriptor `fd` of the thread's table.
Result<Fd> take_descriptor(const Fd& thread, int fd);

}  // namespace farpage::inject
