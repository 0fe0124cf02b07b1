// The node's side of the transport interface: memory exposed to READ and WRITE.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "base/strong.h"
#include "rdma/endpoint.h"
#include "rdma/session_fences.h"

namespace farpage::rdma {

// One slab as the node owns it: mapped memory and its memfd, which shm passes to borrowers. Or a
// file: then `bytes` are addresses without memory, READs and WRITEs are of whole pages, and wait
// for a disk. Only tcp serves it.
struct SlabMemory {
  std::span<std::byte> bytes;
  int memfd = -1;
  int file = -1;  // of bytes.size() bytes, open with O_DIRECT
};

struct HostCounters {
  uint64_t reads = 0;
  uint64_t writes = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t bytes_saved = 0;  // of bytes_written: those that did not cross the wire (PackWrites)
  uint64_t refused = 0;      // wrong key, generation or bounds
  uint64_t malformed = 0;    // frames that closed their connection
  uint64_t peers = 0;        // connected now
};

// Threads: any. Destroying the host ends every peer's connection; exposed memory must outlive it.
class MemoryHost {
 public:
  virtual ~MemoryHost() = default;

  // What to publish so that Transport::connect finds this host.
  virtual TransportAddress address() const = 0;

  // Grants READ and WRITE on the slab to any holder of the key, until withdraw(). One registration
  // per lease. Where the transport lets us choose the key (tcp, shm), it is not guessable. The
  // remote address of the slab's first byte is the address of bytes.data() in this process. verbs:
  // only queue pairs whose session belongs to `borrower` can use the key. The other transports do
  // not need this rule because their keys cannot be guessed.
  virtual Result<RemoteKey> expose(const SlabMemory& slab, Generation generation,
                                   SessionGroup borrower) = 0;

  // After it returns, no READ or WRITE with that key succeeds, and none still accesses the memory.
  virtual void withdraw(RemoteKey key) = 0;

  // verbs: makes a queue pair for this peer, ready to send, and returns its endpoint. Each channel
  // of a peer has its own. The host destroys one whose peer is gone when the device reports it, and
  // the previous one of the same session before the new one is ready. Others: kUnsupported.
  virtual Result<QueuePairEndpoint> accept(const QueuePairEndpoint& peer) = 0;

  virtual HostCounters counters() const = 0;
};

}  // namespace farpage::rdma
