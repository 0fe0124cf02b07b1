// The client's end of a ResizeCall: the request of `farpage resize` to a running `farpage run`.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "uffd/handover_server.h"

namespace farpage::uffd {

// Connects to the hand-over socket of process `pager`. kNotFound: another process
// listens there, or none. kDenied: the socket belongs to another user.
Result<Fd> connect_to_pager(const std::string& path, pid_t pager);

// Requests the change, once. Blocks until the answer arrives or 30 s have passed (kTimedOut).
// kInvalid and kConflict carry the pager's reason why nothing has changed.
Result<ResizedProcesses> resize(const Fd& socket, uint64_t local_bytes);

}  // namespace farpage::uffd
