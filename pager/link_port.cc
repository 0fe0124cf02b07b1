#include "pager/link_port.h"

#include "base/host.h"

namespace farpage::pager {

LinkPort::LinkPort(std::string name, std::span<std::byte> buffer, uint32_t session_group,
                   const Doorbell& wanted)
    : name_(std::move(name)),
      buffer_(buffer),
      session_((uint64_t{session_group} << 32) | random_u32() | 1),
      doorbell_(wanted) {}

LinkPort::~LinkPort() {
  for (Link& link : links_) {
    delete link.mailbox.exchange(nullptr, std::memory_order_acquire);
    delete link.retired.exchange(nullptr, std::memory_order_acquire);
  }
}

rdma::Channel* LinkPort::channel(NodeIndex node) {
  Link& link = links_[node.value];
  if (link.channel && link.channel->usable()) [[likely]]
    return link.channel.get();
  if (link.channel && link.in_flight > 0) return nullptr;  // its completions come first
  // Release: pairs with the acquire in take_retired().
  if (link.channel) delete link.retired.exchange(link.channel.release(), std::memory_order_acq_rel);
  // Acquire: pairs with the release in deliver().
  if (rdma::Channel* fresh = link.mailbox.exchange(nullptr, std::memory_order_acquire)) {
    link.channel.reset(fresh);
    if (fresh->usable()) return fresh;
  }
  if (!link.wanted.exchange(true, std::memory_order_acq_rel)) doorbell_.ring();
  return nullptr;
}

void LinkPort::deliver(NodeIndex node, std::unique_ptr<rdma::Channel> channel) {
  Link& link = links_[node.value];
  delete link.mailbox.exchange(channel.release(), std::memory_order_acq_rel);
  link.wanted.store(false, std::memory_order_release);
}

}  // namespace farpage::pager
