// NodeDirectory: the memory nodes that lend, or have lent, to one fork group of processes, with
// their addresses; and the file of this host, if there is one, which is none of them.
#pragma once

#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "coordinator/api.h"
#include "pager/links/lease_map.h"
#include "pager/succession.h"
#include "rdma/slab_file.h"

namespace farpage::pager {

// Threads: any; one mutex, never held across I/O, not taken on the path of a fault that
// succeeds.
class NodeDirectory {
 public:
  // Succession and file outlive it. `file`: null without one.
  explicit NodeDirectory(const Succession& succession, rdma::SlabFile* file = nullptr)
      : succession_(succession), file_(file) {}
  // Before all else: the nodes of a predecessor.
  Status take_over();

  // Returns the node's index: the known one, with refreshed addresses, or a new one. kExhausted
  // when kMaxNodes are known already, or the succession has no room.
  Result<NodeIndex> put(const coordinator::NodeInfo& node);
  std::optional<NodeIndex> find(const NodeId& id) const;
  // kFileNode: what leads to the file's transport.
  coordinator::NodeInfo get(NodeIndex index) const;
  std::string name_of(NodeIndex index) const { return get(index).join.id.value; }
  size_t size() const;
  std::vector<NodeId> ids() const;
  // Those that drain, or that the coordinator has not heard for some time.
  std::set<NodeIndex> leaving() const;
  rdma::SlabFile* file() const { return file_; }

 private:
  const Succession& succession_;
  rdma::SlabFile* const file_;
  mutable Mutex mutex_;
  std::vector<coordinator::NodeInfo> nodes_ FARPAGE_GUARDED_BY(mutex_);
  std::unordered_map<NodeId, NodeIndex> indexes_ FARPAGE_GUARDED_BY(mutex_);  // by id
};

// Marks the replica unusable: its node lost the memory, or it missed a write; `other`: only while
// that one, which has not missed it, is live. The first call logs it and returns true.
bool mark_lost(const LeaseMap& leases, const NodeDirectory& nodes, PageIndex page,
               const ReplicaLease& replica, const char* why, const ReplicaLease* other = nullptr);

}  // namespace farpage::pager
