// Borrower: the pager's conversation with the coordinator. Leases slabs before they are needed,
// renews the region, and learns which replicas are lost. Nothing on the fault path waits for it;
// when the coordinator is silent, paging goes on under the leases held.
#pragma once

#include <array>
#include <functional>
#include <thread>
#include <vector>

#include "base/doorbell.h"
#include "coordinator/client.h"
#include "pager/core.h"
#include "pager/link_port.h"

namespace farpage::pager {

// Threads: its own, after start(). Core, client and ports outlive it.
class Borrower {
 public:
  Borrower(Core& core, coordinator::Client& client, std::vector<LinkPort*> ports,
           const Doorbell& own_bell, const Doorbell& connector_bell,
           std::function<coordinator::Counters()> counters);
  ~Borrower();

  // Creates the region and leases its first slab, so that a cluster that cannot serve it is known
  // before the program starts. Waits up to `patience` for enough memory nodes.
  Status open_region(Milliseconds patience);
  void start();
  // Ends the thread; the region stays until the destructor gives it back.
  void stop();

  const RegionId& region() const { return region_.id; }
  uint64_t leased_slabs() const { return leased_slabs_.load(std::memory_order_relaxed); }

 private:
  void run();
  Status lease(const std::vector<SlabIndex>& slabs);
  Status adopt(const std::vector<coordinator::Lease>& leases);
  Result<NodeIndex> node_index(const NodeId& id);
  Status refresh_nodes();
  void heartbeat();
  void poll_events();
  void refresh_leases();

  Core& core_;
  coordinator::Client& client_;
  const std::vector<LinkPort*> ports_;
  const Doorbell& own_bell_;
  const Doorbell& connector_bell_;
  const std::function<coordinator::Counters()> counters_;
  coordinator::RegionInfo region_;
  uint64_t events_since_ = 0;
  std::array<bool, kMaxNodes> requested_{};  // channels to the node were asked for
  bool coordinator_silent_ = false;          // said so already
  bool lease_refused_ = false;               // said so already
  std::atomic<uint64_t> leased_slabs_{0};
  std::jthread thread_;
};

}  // namespace farpage::pager
