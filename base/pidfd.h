// pidfds: descriptors of processes and of their threads (pidfd_open(2)).
#pragma once

#include <sys/types.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"

namespace farpage {

inline constexpr Milliseconds kForeverLong{-1};

// Waits so long for the end. Of a process: a zombie has ended. False for an invalid descriptor.
bool has_ended(int pidfd, Milliseconds patience = Milliseconds(0));

// Nothing where it has ended.
void send_signal(int pidfd, int number);

// The process that has called connect(2), whatever becomes of its number `pid` (SO_PEERCRED);
// before Linux 6.5 the one that has the number now.
Result<Fd> peer_process(int socket, pid_t pid);

}  // namespace farpage
