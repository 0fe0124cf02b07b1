#include "image/image_links.h"

namespace farpage::image {

Result<std::unique_ptr<ImageLinks>> ImageLinks::create(
    const std::vector<PortOptions>& ports, const rdma::ChannelOptions& channel,
    coordinator::Client& client, std::vector<std::unique_ptr<rdma::Transport>>& transports,
    StateStore* state) {
  FARPAGE_TRY(succession, pager::Succession::create(state, "images/"));
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
    ports_.push_back(std::make_unique<pager::LinkPort>(
        ports[i].name, rest.first(ports[i].buffer_bytes), ports[i].session,
        std::move(parts.links[i]), bell_, ports[i].pack_writes));
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

Status ImageLinks::adopt(const std::vector<coordinator::Lease>& leases, pager::LeaseMap& map,
                         pager::DeadSlabs dead) {
  return pager::publish_leases(
      leases, map, [this](const NodeId& id) { return node_index(id); }, dead);
}

Status ImageLinks::refresh(const std::vector<coordinator::Lease>& leases, pager::LeaseMap& map) {
  return pager::refresh_leases(leases, map, [this](const NodeId& id) { return node_index(id); });
}

}  // namespace farpage::image
