#include "pager/links/node_directory.h"

#include "base/log.h"
#include "pager/options.h"

namespace farpage::pager {

Status NodeDirectory::take_over() {
  FARPAGE_TRY(known, succession_.nodes());
  const MutexLock lock(mutex_);
  for (uint16_t i = 0; i < known.size(); ++i) indexes_.emplace(known[i].join.id, NodeIndex{i});
  nodes_ = std::move(known);
  return {};
}

Result<NodeIndex> NodeDirectory::put(const coordinator::NodeInfo& node) {
  const MutexLock lock(mutex_);
  if (const auto known = indexes_.find(node.join.id); known != indexes_.end()) {
    FARPAGE_TRY_VOID(succession_.put_node(known->second.value, node));
    nodes_[known->second.value] = node;
    return known->second;
  }
  if (nodes_.size() == kMaxNodes)
    return fail(ErrorCode::kExhausted,
                "node " + node.join.id.value + " cannot be used: this program has borrowed from " +
                    std::to_string(kMaxNodes) +
                    " nodes already; restart it, or use fewer, larger nodes");
  const NodeIndex index{static_cast<uint16_t>(nodes_.size())};
  FARPAGE_TRY_VOID(succession_.put_node(index.value, node));
  nodes_.push_back(node);
  indexes_.emplace(node.join.id, index);
  return index;
}

std::optional<NodeIndex> NodeDirectory::find(const NodeId& id) const {
  const MutexLock lock(mutex_);
  const auto known = indexes_.find(id);
  if (known == indexes_.end()) return std::nullopt;
  return known->second;
}

coordinator::NodeInfo NodeDirectory::get(NodeIndex index) const {
  if (index == kFileNode) {
    coordinator::NodeInfo file;
    file.join.id = NodeId{"file"};  // for the log
    file.join.transports.push_back({rdma::TransportKind::kFile, "file"});
    return file;
  }
  const MutexLock lock(mutex_);
  return nodes_.at(index.value);
}

size_t NodeDirectory::size() const {
  const MutexLock lock(mutex_);
  return nodes_.size();
}

std::vector<NodeId> NodeDirectory::ids() const {
  const MutexLock lock(mutex_);
  std::vector<NodeId> ids;
  for (const coordinator::NodeInfo& node : nodes_) ids.push_back(node.join.id);
  return ids;
}

std::set<NodeIndex> NodeDirectory::leaving() const {
  const MutexLock lock(mutex_);
  std::set<NodeIndex> leaving;
  for (uint16_t i = 0; i < nodes_.size(); ++i)
    if (coordinator::is_leaving(nodes_[i].state)) leaving.insert(NodeIndex{i});
  return leaving;
}

bool mark_lost(const LeaseMap& leases, const NodeDirectory& nodes, PageIndex page,
               const ReplicaLease& replica, const char* why, const ReplicaLease* other) {
  const bool ended =
      other != nullptr ? leases.give_up(replica, *other) : replica.end(ReplicaState::kLost);
  if (!ended) return false;
  log::warn("pager: replica_lost slab={} node={} reason=\"{}\"", leases.slab_of(page).value,
            nodes.name_of(replica.node), why);
  return true;
}

}  // namespace farpage::pager
