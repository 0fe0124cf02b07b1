#include "image/image_links.h"

#include <map>

namespace farpage::image {

Result<std::unique_ptr<ImageLinks>> ImageLinks::create(
    const std::vector<PortOptions>& ports, const rdma::ChannelOptions& channel,
    coordinator::Client& client, std::vector<std::unique_ptr<rdma::Transport>>& transports,
    StateStore* state) {
  FARPAGE_TRY(succession, pager::Succession::create(state));
  FARPAGE_TRY(peers, pager::NodeTable<pager::PeerState>::create());
  FARPAGE_TRY(bell, Doorbell::create());
  size_t bytes = 0;
  std::vector<pager::LinkPort::Links> links;
  for (const PortOptions& port : ports) {
    bytes += port.buffer_bytes;
    FARPAGE_TRY(of_port, pager::LinkPort::Links::create());
    links.push_back(std::move(of_port));
  }
  FARPAGE_TRY(buffers, Mapping::anonymous(bytes, true));
  std::unique_ptr<ImageLinks> made(
      new ImageLinks(Parts{std::move(succession), std::move(peers), std::move(bell),
                           std::move(buffers), std::move(links)},
                     ports, channel, client, transports));
  FARPAGE_TRY_VOID(made->nodes_.take_over());
  return made;
}

ImageLinks::ImageLinks(Parts parts, const std::vector<PortOptions>& ports,
                       const rdma::ChannelOptions& channel, coordinator::Client& client,
                       std::vector<std::unique_ptr<rdma::Transport>>& transports)
    : client_(client),
      channel_(channel),
      succession_(std::move(parts.succession)),
      nodes_(succession_),
      peers_(std::move(parts.peers)),
      bell_(std::move(parts.bell)),
      buffers_(std::move(parts.buffers)) {
  std::span<std::byte> rest = buffers_.bytes();
  std::vector<pager::LinkPort*> list;
  for (size_t i = 0; i < ports.size(); ++i) {
    ports_.push_back(
        std::make_unique<pager::LinkPort>(ports[i].name, rest.first(ports[i].buffer_bytes),
                                          ports[i].session, std::move(parts.links[i]), bell_));
    list.push_back(ports_.back().get());
    rest = rest.subspan(ports[i].buffer_bytes);
  }
  connector_ = std::make_unique<pager::Connector>(
      pager::ConnectorParts{channel_, nodes_, peers_, counts_, stopping_}, client, transports,
      std::move(list), bell_);
}

ImageLinks::~ImageLinks() {
  stopping_.store(true, std::memory_order_release);
  connector_.reset();
}

Result<std::optional<pager::NodeIndex>> ImageLinks::node_index(const NodeId& id) {
  std::optional<pager::NodeIndex> index = nodes_.find(id);
  if (!index) {
    const Result<coordinator::NodeInfo> node = client_.node(id);
    if (!node && node.error().code == ErrorCode::kNotFound) return index;
    if (!node) return tl::unexpected(node.error());
    FARPAGE_TRY(added, nodes_.put(*node));
    index = added;
  }
  // An existing channel must not be replaced.
  if (!peers_[*index].requested.exchange(true, std::memory_order_relaxed)) {
    for (const auto& port : ports_) port->request(*index);
    bell_.ring();
  }
  return index;
}

Status ImageLinks::adopt(const std::vector<coordinator::Lease>& leases, pager::LeaseMap& map) {
  std::map<SlabIndex, std::vector<std::unique_ptr<const pager::ReplicaLease>>> slabs;
  for (const coordinator::Lease& lease : leases) {
    if (lease.slab.value >= map.slabs())
      return fail(ErrorCode::kInvalid,
                  "the coordinator leased a slab that the image does not have");
    if (map.find(PageIndex{uint64_t{lease.slab.value} * map.pages_per_slab()}) != nullptr) continue;
    auto& replicas = slabs[lease.slab];
    FARPAGE_TRY(node, node_index(lease.node));
    if (!node) continue;
    if (replicas.size() == coordinator::kMaxReplicas)
      return fail(ErrorCode::kInvalid, "the coordinator leased too many replicas");
    auto replica = std::make_unique<pager::ReplicaLease>();
    replica->node = *node;
    replica->address = lease.address;
    replica->generation = lease.generation;
    if (lease.lost) (void)replica->end(pager::ReplicaState::kLost);
    for (const auto& [kind, key] : lease.rkeys) replica->keys[static_cast<size_t>(kind)] = key;
    replicas.push_back(std::move(replica));
  }
  for (auto& [slab, replicas] : slabs) {
    bool any = false;
    for (const auto& replica : replicas) any = any || replica->is_read();
    if (!any)
      return fail(ErrorCode::kUnavailable,
                  "slab " + std::to_string(slab.value) + ": every replica of it is lost");
    map.publish(slab, std::move(replicas));
    (void)map.touch(PageIndex{uint64_t{slab.value} * map.pages_per_slab()});
  }
  return {};
}

}  // namespace farpage::image
