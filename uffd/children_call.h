// The client's end of a ChildrenCall: which children of attached programs have no agent yet.
#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "uffd/handover.h"

namespace farpage::uffd {

struct FoundChild : handover::AgentlessChild {
  Fd descriptor;  // its userfaultfd
};

// Asks the pager that listens on `path`. Blocks until the answer arrives, or for 2 s (kTimedOut).
// kUnavailable: it has ended meanwhile; a successor may answer.
Result<std::vector<FoundChild>> ask_children(const std::string& path);

}  // namespace farpage::uffd
