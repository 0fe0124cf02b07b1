// SlabLease: one slab, borrowed for as long as this object lives.
#pragma once

#include <memory>
#include <thread>

#include "base/doorbell.h"
#include "coordinator/client.h"
#include "rdma/transport.h"

namespace farpage::bench {

// Threads: one of its own, which renews the lease; the rest is constant after construction. The
// client outlives it.
class SlabLease {
 public:
  static Result<std::unique_ptr<SlabLease>> borrow(coordinator::Client& client,
                                                   uint64_t slab_bytes);
  SlabLease(const SlabLease&) = delete;
  SlabLease& operator=(const SlabLease&) = delete;
  ~SlabLease();

  const coordinator::Lease& lease() const { return lease_; }
  // A channel to the node that lends it; kUnsupported when the node does not offer the transport.
  Result<std::unique_ptr<rdma::Channel>> connect(rdma::Transport& transport,
                                                 const rdma::ChannelOptions& options) const;

 private:
  SlabLease(coordinator::Client& client, coordinator::RegionInfo region, Doorbell stop)
      : client_(client), region_(std::move(region)), stop_(std::move(stop)) {}
  void renew() const;

  coordinator::Client& client_;
  coordinator::RegionInfo region_;
  coordinator::Lease lease_;
  Doorbell stop_;
  std::thread thread_;
};

}  // namespace farpage::bench
