// NodeTable: one entry for each memory node that a pager may use, and one for the file of this
// host. Address space is reserved for all; the kernel allocates memory for the used parts, and
// nodes are numbered in the order of their first lease.
#pragma once

#include <type_traits>

#include "base/mapping.h"
#include "base/result.h"
#include "pager/links/lease_map.h"
#include "pager/options.h"

namespace farpage::pager {

// Threads: as T says. Reading and writing an entry allocates nothing and takes no lock. An entry is
// all zeros before its first use, and no destructor runs.
template <typename T>
class NodeTable {
  static_assert(std::is_trivially_destructible_v<T>);

 public:
  static Result<NodeTable> create() {
    FARPAGE_TRY(memory, Mapping::anonymous((kMaxNodes + 1) * sizeof(T)));
    return NodeTable(std::move(memory));
  }

  // `node` comes from the NodeDirectory, so it is at most kFileNode.
  T& operator[](NodeIndex node) const { return reinterpret_cast<T*>(memory_.data())[node.value]; }

 private:
  explicit NodeTable(Mapping memory) : memory_(std::move(memory)) {}

  Mapping memory_;
};

}  // namespace farpage::pager
