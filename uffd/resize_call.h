// The other end of a ResizeCall: what `farpage resize` says to a running `farpage run`.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "uffd/handover_server.h"

namespace farpage::uffd {

// Connects to the hand-over socket of process `pager`. kNotFound: it is not that process that
// listens there, or nobody does. kDenied: the socket is another user's.
Result<Fd> connect_to_pager(const std::string& path, pid_t pager);

// The change, once. Blocks until the answer is here or 30 s have passed (kTimedOut). kInvalid and
// kConflict: the pager's own words for why nothing has changed.
Result<ResizedProcesses> resize(const Fd& socket, uint64_t local_bytes);

}  // namespace farpage::uffd
