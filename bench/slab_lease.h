// SlabLease: one slab, borrowed for the lifetime of this object.
#pragma once

#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/doorbell.h"
#include "coordinator/client.h"
#include "rdma/session.h"
#include "rdma/transport.h"

namespace farpage::bench {

// The duration of one wait for completions.
inline constexpr Nanoseconds kLook = Seconds(1);

// Threads: one of its own renews the lease; the rest is constant after construction. The client
// outlives it.
class SlabLease {
 public:
  static Result<std::unique_ptr<SlabLease>> borrow(coordinator::Client& client,
                                                   uint64_t slab_bytes);
  SlabLease(const SlabLease&) = delete;
  SlabLease& operator=(const SlabLease&) = delete;
  ~SlabLease();

  const coordinator::Lease& lease() const { return lease_; }
  const RegionId& region() const { return region_.id; }
  // For a channel that the caller makes: over verbs, only sessions of this group may use the slab.
  uint64_t new_session() const { return rdma::new_session(session_group_); }
  // A channel to the lender: address_of() and connect_to().
  Result<std::unique_ptr<rdma::Channel>> connect(rdma::Transport& transport,
                                                 const rdma::ChannelOptions& options) const;

 private:
  SlabLease(coordinator::Client& client, rdma::SessionGroup session_group,
            coordinator::RegionInfo region, Doorbell stop)
      : client_(client),
        session_group_(session_group),
        region_(std::move(region)),
        stop_(std::move(stop)) {}
  void renew() const;

  coordinator::Client& client_;
  const rdma::SessionGroup session_group_;
  coordinator::RegionInfo region_;
  coordinator::Lease lease_;
  Doorbell stop_;
  std::thread thread_;
};

// The lender's address for this transport; kUnsupported when the node does not offer it.
Result<rdma::TransportAddress> address_of(coordinator::Client& client,
                                          const coordinator::Lease& lease,
                                          rdma::TransportKind kind);
// A channel to that address; a queue pair is exchanged through the coordinator.
Result<std::unique_ptr<rdma::Channel>> connect_to(coordinator::Client& client,
                                                  const coordinator::Lease& lease,
                                                  rdma::Transport& transport,
                                                  const rdma::TransportAddress& address,
                                                  const rdma::ChannelOptions& options);

// Posts one operation and waits for its completion. kUnavailable: it failed.
Status perform(rdma::Channel& channel, const rdma::Operation& operation);

}  // namespace farpage::bench
