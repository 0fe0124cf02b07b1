#include "bench/slab_lease.h"

#include <algorithm>

namespace farpage::bench {

Result<std::unique_ptr<SlabLease>> SlabLease::borrow(coordinator::Client& client,
                                                     uint64_t slab_bytes) {
  FARPAGE_TRY(stop, Doorbell::create());
  FARPAGE_TRY(region,
              client.create_region(
                  {.name = "bench-read", .bytes = 0, .replicas = 1, .slab_bytes = slab_bytes}));
  std::unique_ptr<SlabLease> slab(new SlabLease(client, std::move(region), std::move(stop)));
  FARPAGE_TRY(leases, client.lease_slabs(slab->region_.id, {SlabIndex{0}}));
  if (leases.empty() || leases.front().bytes != slab_bytes)
    return fail(ErrorCode::kInvalid, "the coordinator leased no slab of the size asked for");
  slab->lease_ = std::move(leases.front());
  slab->thread_ = std::thread([lease = slab.get()] { lease->renew(); });
  return slab;
}

SlabLease::~SlabLease() {
  stop_.ring();
  if (thread_.joinable()) thread_.join();
  // Best effort: the coordinator takes it back by itself after its time to live.
  (void)client_.delete_region(region_.id);
}

void SlabLease::renew() const {
  // A failure shows itself: the node refuses the next operation.
  while (!stop_.wait(region_.heartbeat_interval)) (void)client_.heartbeat_region(region_.id, {});
}

Result<std::unique_ptr<rdma::Channel>> SlabLease::connect(
    rdma::Transport& transport, const rdma::ChannelOptions& options) const {
  FARPAGE_TRY(nodes, client_.nodes());
  const auto node = std::find_if(nodes.begin(), nodes.end(), [this](const auto& candidate) {
    return candidate.join.id == lease_.node;
  });
  if (node == nodes.end())
    return fail(ErrorCode::kUnavailable, "node " + lease_.node.value + " is gone");
  for (const rdma::TransportAddress& address : node->join.transports) {
    if (address.kind != transport.kind() || !lease_.rkeys.contains(address.kind)) continue;
    return transport.connect(address, options, [this](const rdma::QueuePairEndpoint& ours) {
      return client_.exchange(lease_.node, ours);
    });
  }
  return fail(ErrorCode::kUnsupported, "node " + lease_.node.value + " does not offer " +
                                           std::string(rdma::to_string(transport.kind())));
}

}  // namespace farpage::bench
