// The name under which a node joins, unique among the nodes of this host.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace farpage::cli {

// A default name is not given to another farpage node of this host and user as long as the object
// lives: a lock on DIRECTORY/NAME.lock holds it, which ends with the process.
struct NodeName {
  std::string name;
  Fd lock;  // invalid: the name was asked for, or the directory cannot be used
};

// `wanted` as it is: the coordinator refuses it where it is taken. Where it is empty: the host's
// name, or host-2 to host-64 where other nodes of this host hold the former ones. kConflict: all
// of them are held.
Result<NodeName> claim_node_name(const std::string& wanted, const std::string& directory);

}  // namespace farpage::cli
