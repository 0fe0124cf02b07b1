// Flags of open(2) and fcntl(F_SETFL) as they go to the kernel: without O_DIRECT (direct_io.cc).
#pragma once

namespace farpage::shim {

int buffered(int flags);
// On a pipe the flag means packet mode, and it stays.
int buffered_unless_pipe(int fd, int flags);

}  // namespace farpage::shim
