#include "bench/slab_lease.h"

#include <algorithm>

namespace farpage::bench {

Result<std::unique_ptr<SlabLease>> SlabLease::borrow(coordinator::Client& client,
                                                     uint64_t slab_bytes) {
  FARPAGE_TRY(stop, Doorbell::create());
  const rdma::SessionGroup group = rdma::new_session_group();
  FARPAGE_TRY(region, client.create_region({.name = "bench-slab",
                                            .bytes = 0,
                                            .replicas = 1,
                                            .slab_bytes = slab_bytes,
                                            .session_group = group}));
  std::unique_ptr<SlabLease> slab(new SlabLease(client, group, std::move(region), std::move(stop)));
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
  // Best effort: otherwise the coordinator deletes the region after its time to live.
  (void)client_.delete_region(region_.id);
}

void SlabLease::renew() const {
  // A failed heartbeat becomes visible when the node refuses an operation.
  while (!stop_.wait(region_.heartbeat_interval)) (void)client_.heartbeat_region(region_.id, {});
}

Result<std::unique_ptr<rdma::Channel>> SlabLease::connect(
    rdma::Transport& transport, const rdma::ChannelOptions& options) const {
  FARPAGE_TRY(address, address_of(client_, lease_, transport.kind()));
  return connect_to(client_, lease_, transport, address, options);
}

Result<rdma::TransportAddress> address_of(coordinator::Client& client,
                                          const coordinator::Lease& lease,
                                          rdma::TransportKind kind) {
  FARPAGE_TRY(node, client.node(lease.node));
  for (const rdma::TransportAddress& address : node.join.transports)
    if (address.kind == kind && lease.rkeys.contains(kind)) return address;
  return fail(ErrorCode::kUnsupported,
              "node " + lease.node.value + " does not offer " + std::string(rdma::to_string(kind)));
}

Result<std::unique_ptr<rdma::Channel>> connect_to(coordinator::Client& client,
                                                  const coordinator::Lease& lease,
                                                  rdma::Transport& transport,
                                                  const rdma::TransportAddress& address,
                                                  const rdma::ChannelOptions& options) {
  return transport.connect(address, options, [&](const rdma::QueuePairEndpoint& ours) {
    return client.exchange(lease.node, ours);
  });
}

Status perform(rdma::Channel& channel, const rdma::Operation& operation) {
  if (channel.post({&operation, 1}) != 1)
    return fail(ErrorCode::kUnavailable, "the channel took no operation: " + channel.why_broken());
  rdma::Completion completion;
  while (channel.wait({&completion, 1}, kLook) == 0) {
  }
  if (completion.status == rdma::CompletionStatus::kOk) return {};
  return fail(ErrorCode::kUnavailable, "an operation ended with '" +
                                           std::string(rdma::to_string(completion.status)) + "' " +
                                           channel.why_broken());
}

}  // namespace farpage::bench
