// ImageLinks: the channels of one process to the nodes that store images. One port for each thread
// that reads or writes; pager/links/connector.h connects them.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/doorbell.h"
#include "base/mapping.h"
#include "base/result.h"
#include "coordinator/client.h"
#include "pager/links/connector.h"
#include "pager/links/lease_map.h"
#include "pager/links/link_port.h"
#include "pager/links/node_directory.h"
#include "pager/links/stored_pages.h"
#include "pager/succession.h"
#include "rdma/transport.h"

namespace farpage::image {

struct PortOptions {
  std::string name;
  size_t buffer_bytes = 0;  // whole pages
  uint64_t session = 0;     // of the images' session group
  rdma::PackWrites pack_writes = rdma::PackWrites::kNever;
};

// Threads: adopt(), refresh() and node_index() from any but the ports' owners; the ports as
// LinkPort says.
class ImageLinks {
 public:
  // Client and transports outlive it. `channel`: the template of each channel. `state`: with it a
  // successor knows the nodes that this process has; null: nothing is kept.
  static Result<std::unique_ptr<ImageLinks>> create(
      const std::vector<PortOptions>& ports, const rdma::ChannelOptions& channel,
      coordinator::Client& client, std::vector<std::unique_ptr<rdma::Transport>>& transports,
      StateStore* state = nullptr);
  ~ImageLinks();

  pager::LinkPort& port(size_t index) { return *ports_.at(index); }
  const pager::NodeDirectory& nodes() const { return nodes_; }
  const pager::LinkCounts& counts() const { return counts_; }

  // Publishes the leases that the map lacks, and has channels made to their nodes. A replica whose
  // node has left is a lost one. kUnavailable: no replica of a slab is left.
  Status adopt(const std::vector<coordinator::Lease>& leases, pager::LeaseMap& map,
               pager::DeadSlabs dead = pager::DeadSlabs::kRefuse);
  // As pager::refresh_leases().
  Status refresh(const std::vector<coordinator::Lease>& leases, pager::LeaseMap& map);
  // Of a node to which channels are made from now on. nullopt: it has left.
  Result<std::optional<pager::NodeIndex>> node_index(const NodeId& id);
  pager::NodeDirectory& nodes() { return nodes_; }
  const pager::NodeTable<pager::PeerState>& peers() const { return peers_; }

 private:
  struct Parts {
    pager::Succession succession;
    pager::NodeTable<pager::PeerState> peers;
    Doorbell bell;
    Mapping buffers;
    std::vector<pager::LinkPort::Links> links;
  };
  ImageLinks(Parts parts, const std::vector<PortOptions>& ports,
             const rdma::ChannelOptions& channel, coordinator::Client& client,
             std::vector<std::unique_ptr<rdma::Transport>>& transports);

  coordinator::Client& client_;
  const rdma::ChannelOptions channel_;
  const pager::Succession succession_;
  pager::NodeDirectory nodes_;
  pager::NodeTable<pager::PeerState> peers_;
  pager::LinkCounts counts_;
  std::atomic<bool> stopping_{false};
  const Doorbell bell_;
  Mapping buffers_;
  std::vector<std::unique_ptr<pager::LinkPort>> ports_;
  std::unique_ptr<pager::Connector> connector_;
};

}  // namespace farpage::image
