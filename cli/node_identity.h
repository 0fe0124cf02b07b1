// The identity of a node: a number in a file that tells a restart of the node from another one that
// has its name, and its disk from a copy of it.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace farpage::cli {

struct NodeIdentity {
  std::string text;  // 32 hexadecimal digits; empty: none, without a directory
  Fd lock;           // while it exists, no other node of this host uses the file
};

// That of DIRECTORY/NAME.id, which is made at the first call, with its directory. An empty
// `directory`: none. kConflict: another node of this host uses it. kInvalid: it is no identity.
Result<NodeIdentity> load_identity(const std::string& directory, const std::string& name);

}  // namespace farpage::cli
