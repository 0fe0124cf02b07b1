// MemoryHost over verbs: the device itself answers READs and WRITEs; this class makes the queue
// pairs and the registrations for them.
//
// A dead peer sends nothing, and a queue pair that only answers does not detect it. So idle peers
// are probed with a WRITE of no bytes, which needs no key and no memory: if the peer's device does
// not acknowledge it, it fails within (retries + 1) timeouts, and the queue pair is dropped.
#pragma once

#include <infiniband/verbs.h>

#include <map>
#include <memory>

#include "base/mutex.h"
#include "rdma/memory_host.h"
#include "rdma/verbs/async_events.h"
#include "rdma/verbs/choices.h"
#include "rdma/verbs/queue_pair.h"
#include "rdma/verbs/resources.h"
#include "rdma/verbs/verbs.h"

namespace farpage::rdma::verbs {

// Threads: any; besides the callers', the one of events_.
// Invariants:
//  1. A peer is in peers_ under the number of our queue pair, which is ready to send.
//  2. Locks are taken in the order mutex_, fences_; fenced peers are reset without mutex_.
//  3. At most one probe is in flight on each queue pair, so the completion queue never overflows.
class VerbsMemoryHost final : public MemoryHost {
 public:
  static Result<std::unique_ptr<MemoryHost>> create(
      const std::shared_ptr<const VerbsLibrary>& library, const VerbsHostOptions& options);

  TransportAddress address() const override;
  Result<RemoteKey> expose(const SlabMemory& slab, Generation generation,
                           SessionGroup borrower) override;
  void withdraw(RemoteKey key) override;
  Result<QueuePairEndpoint> accept(const QueuePairEndpoint& peer) override;
  HostCounters counters() const override;

 private:
  struct Peer {
    QueuePair queue_pair;
    QueuePairEndpoint endpoint;
    bool probed = false;       // and not answered yet
    SessionFences::Pass pass;  // after queue_pair, which when_fenced resets
  };
  using Peers = std::map<uint32_t, Peer>;

  VerbsMemoryHost(std::shared_ptr<const Device> device, CompletionQueue completions,
                  LocalSide local, const VerbsHostOptions& options)
      : options_(options),
        fences_(options.fences ? options.fences : std::make_shared<SessionFences>()),
        local_(std::move(local)),
        device_(std::move(device)),
        completions_(std::move(completions)) {}

  // Each borrower has its own protection domain while it has a lease or a queue pair.
  Result<std::shared_ptr<const ProtectionDomain>> domain_of(SessionGroup borrower)
      FARPAGE_REQUIRES(mutex_);
  void on_queue_pair_error(uint32_t qpn, ibv_event_type type);
  void check_peers();
  void take_answers() FARPAGE_REQUIRES(mutex_);
  void probe_all() FARPAGE_REQUIRES(mutex_);
  Peers::iterator drop(Peers::iterator peer, std::string_view why, SessionEnd end)
      FARPAGE_REQUIRES(mutex_);

  // Constant after construction.
  const VerbsHostOptions options_;
  const std::shared_ptr<SessionFences> fences_;
  const LocalSide local_;
  const std::shared_ptr<const Device> device_;

  mutable Mutex mutex_;
  CompletionQueue completions_ FARPAGE_GUARDED_BY(mutex_);
  std::map<SessionGroup, std::weak_ptr<const ProtectionDomain>> domains_ FARPAGE_GUARDED_BY(mutex_);
  std::map<uint32_t, Registration> registrations_ FARPAGE_GUARDED_BY(mutex_);  // by rkey
  Peers peers_ FARPAGE_GUARDED_BY(mutex_);
  uint64_t refused_ FARPAGE_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<AsyncEvents> events_;  // last: its thread calls into this object
};

}  // namespace farpage::rdma::verbs
