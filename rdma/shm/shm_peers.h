// ShmPeers: the borrowers connected to a shm host, and which of them may use which slab.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/mapping.h"
#include "base/mutex.h"
#include "rdma/guesses.h"
#include "rdma/key_table.h"
#include "rdma/memory_host.h"
#include "rdma/session_fences.h"
#include "rdma/shm/shm_message.h"

namespace farpage::rdma::shm {

// One connected borrower.
struct ShmPeer {
  Fd socket;
  std::string user;
  Instant served_from{0};  // no receive before; service thread only
  Fd page_fd;
  Mapping page_mapping;
  bool greeted = false;
  Guesses guesses;
  std::vector<uint32_t> free_slots;
  std::unordered_map<RemoteKey, uint32_t> slots;  // of the slabs it attached
  std::atomic<bool> gone{false};
  SessionFences::Pass pass;  // keeps its session's channels of other transports fenced

  PeerPage& page() const { return *reinterpret_cast<PeerPage*>(page_mapping.data()); }
};

// Threads: any. Only the host's service thread reads and closes a peer's socket.
class ShmPeers {
 public:
  ShmPeers();

  Result<std::shared_ptr<ShmPeer>> add(Fd socket);
  void remove(const std::shared_ptr<ShmPeer>& peer);
  // The answer to a request, and the descriptor that goes with it (-1: none). Send the answer while
  // holding the Use, which keeps the slab's memfd open.
  struct Answer {
    Reply reply;
    int descriptor = -1;
    KeyTable::Use use;
    bool guesses = false;  // the peer has presented too many never-issued keys
  };
  Answer answer(ShmPeer& peer, const Request& request);

  Result<RemoteKey> expose(const SlabMemory& slab, Generation generation);
  // False: a peer's copy was still in progress after `grace`, because it does not run.
  bool withdraw(RemoteKey key, Nanoseconds grace);
  void withdraw_all(Nanoseconds grace);

  HostCounters counters() const;
  void count_malformed() { malformed_.fetch_add(1, std::memory_order_relaxed); }

 private:
  Answer attach(ShmPeer& peer, const Request& request);

  const uint64_t host_number_;
  KeyTable keys_;
  std::atomic<uint64_t> malformed_{0};

  mutable Mutex mutex_;
  std::vector<std::shared_ptr<ShmPeer>> peers_ FARPAGE_GUARDED_BY(mutex_);
  std::unordered_map<RemoteKey, uint64_t> leases_
      FARPAGE_GUARDED_BY(mutex_);  // the number of each exposed slab
  uint64_t next_lease_ FARPAGE_GUARDED_BY(mutex_) = 1;
  HostCounters departed_ FARPAGE_GUARDED_BY(mutex_);  // of peers that left
};

}  // namespace farpage::rdma::shm
