// Connector: the thread that connects channels, so that no fault thread waits for a handshake.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/doorbell.h"
#include "coordinator/client.h"
#include "pager/links/link_port.h"
#include "pager/links/node_directory.h"
#include "pager/links/node_table.h"
#include "pager/links/peer_state.h"
#include "pager/stats.h"

namespace farpage::pager {

// What a connector uses of whom it connects for. All of it outlives the connector.
struct ConnectorParts {
  const rdma::ChannelOptions& channel;  // the template of each channel
  const NodeDirectory& nodes;
  const NodeTable<PeerState>& peers;
  LinkCounts& counts;
  const std::atomic<bool>& stopping;  // set before it is destroyed
};

// Threads: its own; the thread that made it destroys it. Ports and parts outlive it.
class Connector {
 public:
  Connector(const ConnectorParts& parts, coordinator::Client& client,
            std::vector<std::unique_ptr<rdma::Transport>>& transports, std::vector<LinkPort*> ports,
            const Doorbell& bell);
  ~Connector();

 private:
  // State of one port's connections to one node.
  struct Attempt {
    Instant not_before{0};  // back-off
    Milliseconds pause{0};
    size_t broken_in_a_row = 0;  // channels that broke soon after they were made
    Instant connected_at{0};
    size_t preferred = 0;  // index into `transports_` where the next attempt starts
  };

  void run();
  // Time until the next attempt to connect a channel; kIdle: all are connected.
  Milliseconds serve_ports();
  // Each port with each node that it has asked for, until the connector stops.
  template <typename Visit>
  void for_each_wanted(Visit&& visit);
  // To nodes whose last attempt did not fail.
  void connect_reachable();
  // False: it is too early for another attempt.
  bool connect_if_due(LinkPort& port, NodeIndex node);
  void connect(LinkPort& port, NodeIndex node, Attempt& attempt);
  Result<std::unique_ptr<rdma::Channel>> connect_by(rdma::Transport& transport, LinkPort& port,
                                                    const coordinator::NodeInfo& node);

  const ConnectorParts parts_;
  coordinator::Client& client_;
  std::vector<std::unique_ptr<rdma::Transport>>& transports_;
  const std::vector<LinkPort*> ports_;
  const Doorbell& bell_;
  std::map<std::pair<LinkPort*, NodeIndex>, Attempt> attempts_;
  std::jthread thread_;
};

}  // namespace farpage::pager
