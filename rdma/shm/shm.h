// The shm transport: a node on this host. Its slabs are memfds, passed through a unix socket when a
// lease is first used; READ and WRITE are copies that do not involve the node's process.
//
// Rule for nodes: when a slab is lent again it must be a NEW memfd (see "Withdrawal" below).
//
// Withdrawal. The host clears a word in memory it shares with each borrower, which the borrower
// checks before every copy, and waits for copies in progress. This stops a correct borrower
// reliably. A borrower that ignores the word (it runs as the same user) keeps the old memfd mapped,
// and the host cannot revoke that mapping: so the slab must be lent next from another memfd. Punch
// a hole into the old one before closing it, so that a borrower's idle mapping does not keep its
// pages.
#pragma once

#include <memory>
#include <string>

#include "rdma/memory_host.h"
#include "rdma/session_fences.h"
#include "rdma/transport.h"

namespace farpage::rdma {

// connect() fails with kUnsupported when the address belongs to another kernel (boot_id),
// kUnavailable when there is no listener, kDenied when the listener runs as another user.
//
// The first use of a lease on a channel requests its memfd from the node; the operations that wait
// for the answer complete in poll() or wait(), all others already in post(). The channels of one
// transport share mappings and sessions, so use one transport per process. Limits as tcp.
//
// Sessions. The borrower's own thread makes all copies inside its calls, so a broken or destroyed
// channel leaves nothing in flight. A previous channel of the session finds its Pass revoked at its
// next call (session_fences.h) and breaks. The host also learns the session, to fence channels of
// other transports.
std::unique_ptr<Transport> make_shm_transport();

struct ShmHostOptions {
  // Its directory must belong to this user with mode 0700; it is made if missing. Borrowers must
  // run as this user or as root.
  std::string socket_path;
  uint32_t max_peers = 1024;
  // How long withdraw() waits for a copy in progress in a borrower that does not run (stopped).
  Nanoseconds withdraw_grace = Milliseconds(200);
  std::shared_ptr<SessionFences> fences = nullptr;  // of the whole node; null: one of its own
};

// expose() needs SlabMemory::memfd, whose first bytes.size() bytes are the slab, sealed against
// shrinking (create_memfd does that).
// Fails with kInvalid or kDenied (names the field), or the error of bind(2).
Result<std::unique_ptr<MemoryHost>> make_shm_memory_host(ShmHostOptions options);

}  // namespace farpage::rdma
