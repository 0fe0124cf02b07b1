#include "pager/links/link_port.h"

#include <algorithm>
#include <utility>

namespace farpage::pager {

LinkPort::LinkPort(std::string name, std::span<std::byte> buffer, uint64_t session, Links links,
                   const Doorbell& wanted, rdma::PackWrites pack_writes)
    : name_(std::move(name)),
      buffer_(buffer),
      session_(session),
      doorbell_(wanted),
      pack_writes_(pack_writes),
      links_(std::move(links)) {}

LinkPort::~LinkPort() {
  for (uint32_t i = 0; i < connected_nodes_; ++i) {
    Link& link = links_[NodeIndex{static_cast<uint16_t>(i)}];
    delete link.channel;
    delete link.mailbox.load(std::memory_order_acquire);
    delete link.retired.load(std::memory_order_acquire);
  }
}

rdma::Channel* LinkPort::channel(NodeIndex node) {
  Link& link = links_[node];
  if (link.channel != nullptr && link.channel->usable()) [[likely]]
    return link.channel;
  if (link.in_flight > 0) return nullptr;  // its completions come first
  // Release: pairs with the acquire in take_retired().
  if (link.channel != nullptr)
    delete link.retired.exchange(std::exchange(link.channel, nullptr), std::memory_order_acq_rel);
  // Before the mailbox: the answer to a request that is not pending any more is in there. Otherwise
  // a channel delivered in between would be requested again, and the second one would end it.
  const bool requested = link.wanted.load(std::memory_order_acquire);
  // Acquire: pairs with the release in deliver().
  link.channel = link.mailbox.exchange(nullptr, std::memory_order_acquire);
  if (link.channel != nullptr && link.channel->usable()) return link.channel;
  if (!requested && !link.wanted.exchange(true, std::memory_order_acq_rel)) doorbell_.ring();
  return nullptr;
}

void LinkPort::deliver(NodeIndex node, std::unique_ptr<rdma::Channel> channel) {
  Link& link = links_[node];
  connected_nodes_ = std::max(connected_nodes_, node.value + 1U);
  delete link.mailbox.exchange(channel.release(), std::memory_order_acq_rel);
  link.wanted.store(false, std::memory_order_release);
}

}  // namespace farpage::pager
