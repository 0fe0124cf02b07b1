// The name under which a node joins, unique among the nodes of this host.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace farpage::cli {

// While the object exists, no other farpage node of this host and user gets the same default name:
// a lock on DIRECTORY/NAME.lock reserves it. The kernel releases the lock when the process ends.
struct NodeName {
  std::string name;
  Fd lock;  // invalid: the name was given, or the directory cannot be used
};

// Returns `wanted` unchanged: the coordinator refuses it if it is taken. If it is empty: the host's
// name, or host-2 to host-64 if other nodes of this host have reserved the previous names.
// kConflict: all of them are reserved.
Result<NodeName> claim_node_name(const std::string& wanted, const std::string& directory);

}  // namespace farpage::cli
