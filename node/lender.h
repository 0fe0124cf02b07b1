// Lender: lends the pool's slabs on every transport of the node, and revokes them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "coordinator/api.h"
#include "node/slab_pool.h"
#include "rdma/memory_host.h"

namespace farpage::node {

struct TransportReport {
  rdma::TransportKind kind = rdma::TransportKind::kTcp;
  rdma::HostCounters counters;
};

// Threads: any.
// Invariants:
//  1. Each lease has one registration on every host, or none at all: a borrower may use any
//     transport.
//  2. A slab returns to the pool only after every host has withdrawn its key.
//
// A coordinator that has lost its state, or is an older copy of itself, does not know some leases,
// and asks for their slabs. While their borrowers have data sessions here it is refused. A lease
// that was asked for, and a minute later is asked for again, without a session of its borrower both
// times, ends: nobody else would ever end it.
class Lender {
 public:
  // How long a lease, or a slab's end, waits for a slab that is being scrubbed.
  static constexpr Milliseconds kScrubWait{1500};
  static constexpr Nanoseconds kUnknownFor = Seconds(60);

  struct Options {
    // The borrowers with a data session here, and those whose sessions may only be interrupted;
    // empty: that is not known.
    std::function<std::vector<uint32_t>()> session_groups;
    Nanoseconds unknown_for = kUnknownFor;
  };
  // Pool and hosts must outlive the lender. At most one host of each transport.
  Lender(SlabPool& pool, std::span<const std::unique_ptr<rdma::MemoryHost>> hosts, Options options);
  // Withdraws all slabs that are still lent.
  ~Lender();

  // Idempotent: a retry by the same borrower returns the same lease (the coordinator may have lost
  // the answer). kConflict: leased to another. kUnavailable: leaving, or still being scrubbed.
  // kExhausted and others: a host could not register the slab (memlock).
  Result<coordinator::SlabLeaseReply> lease(uint32_t node_slab,
                                            const coordinator::SlabLeaseRequest& borrower);
  // Ends a lease: no READ or WRITE with its keys succeeds afterwards. Idempotent. kConflict: the
  // generation is not the slab's current one; nothing changed.
  Status revoke(uint32_t node_slab, Generation generation);

  // More slabs to lend, and fewer, as SlabPool says.
  Status add(std::span<const uint32_t> node_slabs, uint64_t in_all);
  Status withdraw(std::span<const uint32_t> node_slabs);

  // The verbs host connects to the peer's queue pair. kUnsupported: this node has no verbs host.
  Result<rdma::QueuePairEndpoint> connect(const rdma::QueuePairEndpoint& peer);

  void refuse_new_leases();
  bool refuses_new_leases() const;
  // Waits until nothing is leased; false: not within `limit`.
  bool wait_until_nothing_leased(Nanoseconds limit);

  // Slabs that are free or being scrubbed; 0 once new leases are refused.
  uint32_t lendable_slabs() const;
  SlabCounts slab_counts() const { return pool_.counts(); }
  std::vector<rdma::TransportAddress> addresses() const;
  std::vector<TransportReport> reports() const;

 private:
  struct Registration {
    rdma::MemoryHost* host = nullptr;
    rdma::TransportKind kind = rdma::TransportKind::kTcp;
    RemoteKey key;
  };
  struct Lease {
    coordinator::SlabLeaseRequest borrower;
    coordinator::SlabLeaseReply reply;
    std::vector<Registration> registrations;
    Instant unknown_since{0};  // the coordinator wants to lend the slab to another; 0: it does not
  };
  using Leases = std::map<uint32_t, Lease>;  // by node slab

  Result<std::vector<Registration>> expose_everywhere(const SlabPool::Lent& lent,
                                                      rdma::SessionGroup borrower);
  static void withdraw_all(const std::vector<Registration>& registrations);
  // The slab is wanted for another borrower: may this one still use it?
  bool is_in_use(Lease& lease) const;
  Status end(Leases::iterator held) FARPAGE_REQUIRES(mutex_);

  SlabPool& pool_;
  const std::span<const std::unique_ptr<rdma::MemoryHost>> hosts_;
  const Options options_;

  mutable Mutex mutex_;  // held during registration: leases are rare, seconds apart
  Leases leases_ FARPAGE_GUARDED_BY(mutex_);
  bool refusing_ FARPAGE_GUARDED_BY(mutex_) = false;
  ConditionVariable returned_;  // a lease ended
};

}  // namespace farpage::node
