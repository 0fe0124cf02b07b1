#include "pager/node_directory.h"

#include "base/log.h"
#include "pager/options.h"

namespace farpage::pager {

std::optional<NodeIndex> NodeDirectory::put(const coordinator::NodeInfo& node) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].join.id != node.join.id) continue;
    nodes_[i] = node;
    return NodeIndex{static_cast<uint8_t>(i)};
  }
  if (nodes_.size() == kMaxNodes) return std::nullopt;
  nodes_.push_back(node);
  return NodeIndex{static_cast<uint8_t>(nodes_.size() - 1)};
}

std::optional<NodeIndex> NodeDirectory::find(const NodeId& id) const {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].join.id == id) return NodeIndex{static_cast<uint8_t>(i)};
  return std::nullopt;
}

coordinator::NodeInfo NodeDirectory::get(NodeIndex index) const {
  const std::lock_guard lock(mutex_);
  return nodes_.at(index.value);
}

size_t NodeDirectory::size() const {
  const std::lock_guard lock(mutex_);
  return nodes_.size();
}

bool mark_lost(const LeaseMap& leases, const NodeDirectory& nodes, PageIndex page,
               const ReplicaLease& replica, const char* why) {
  if (replica.lost.exchange(true, std::memory_order_acq_rel)) return false;
  log::warn("pager: replica_lost slab={} node={} reason=\"{}\"", leases.slab_of(page).value,
            nodes.name_of(replica.node), why);
  return true;
}

}  // namespace farpage::pager
