// The userfaultfd of this process. Mechanism only: creating it, and registering ranges with it.
#pragma once

#include <stdint.h>

#include "shim/syscalls.h"

namespace farpage::shim {

struct Userfault {
  int fd = -1;
  uint64_t features = 0;  // UFFD_FEATURE_* that are enabled

  bool tells_of_forks() const;
};

// A full descriptor (page faults inside system calls too): /dev/userfaultfd first, then the system
// call. Write-protect faults are required; thread ids, REMAP and UNMAP events and poison are
// enabled where the kernel has them. REMOVE events are off on purpose: with them the target's own
// MADV_DONTNEED, mostly the agent's, would wait until the pager reads the event.
//
// `fork_events`: enabled too; they need CAP_SYS_PTRACE, and are left off without it. If the kernel
// refuses, reports the reason on standard error and exits.
Userfault open_userfault_or_exit(bool fork_events);

// Missing and write-protect faults of the span go to the pager from now on. 0 or a negative errno.
long register_span(int userfault_fd, Span span);
// Wakes the threads that wait there: they try again.
long unregister_span(int userfault_fd, Span span);

}  // namespace farpage::shim
