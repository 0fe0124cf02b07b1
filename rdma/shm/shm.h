// The shm transport: a node on this host. Its slabs are memfds, handed over through a unix socket
// when a lease is first used; READ and WRITE are copies, and the node's process does nothing.
//
// Rule for nodes: when a slab is lent again it must be a NEW memfd (see "Withdrawal" below).
//
// Withdrawal. The host clears a word in memory it shares with each borrower, which the borrower
// checks before every copy, and waits for copies under way. A borrower of ours is stopped exactly.
// One that ignores the word (it runs under the same user) still has the old memfd mapped, and
// nothing can take that away: so the slab's next life must be in another memfd. Punch a hole into
// the old one before closing it, so that a borrower's idle mapping does not keep its pages.
#pragma once

#include <memory>
#include <string>

#include "rdma/memory_host.h"
#include "rdma/session_fences.h"
#include "rdma/transport.h"

namespace farpage::rdma {

// connect() fails with kUnsupported when the address belongs to another kernel (boot_id),
// kUnavailable when nobody listens, kDenied when the listener runs under another user.
//
// The first use of a lease on a channel asks the node for its memfd; the operations that wait for
// the answer complete in poll() or wait(), all others already in post(). Mappings and sessions are
// shared between the channels of one transport, so use one transport per process. Limits as tcp.
//
// Sessions. All copies are made by the borrower's own thread inside its calls, so a channel that is
// broken or destroyed leaves nothing behind that could happen later; a former one that is still
// called finds its pass taken (session_fences.h) and breaks. The host is told of the session too,
// to fence channels of other transports.
std::unique_ptr<Transport> make_shm_transport();

struct ShmHostOptions {
  // Its directory must belong to this user with mode 0700; it is made if missing. Borrowers must
  // run under this user or root.
  std::string socket_path;
  uint32_t max_peers = 1024;
  // How long withdraw() waits for a copy under way in a borrower that does not run (stopped).
  Nanoseconds withdraw_grace = Milliseconds(200);
  std::shared_ptr<SessionFences> fences = nullptr;  // of the whole node; null: one of its own
};

// expose() needs SlabMemory::memfd, whose first bytes.size() bytes are the slab, sealed against
// shrinking (create_memfd does that).
// Fails with kInvalid or kDenied (names the field), or the error of bind(2).
Result<std::unique_ptr<MemoryHost>> make_shm_memory_host(ShmHostOptions options);

}  // namespace farpage::rdma
