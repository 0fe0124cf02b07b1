// The text output of `farpage status`.
#pragma once

#include <string>
#include <vector>

#include "coordinator/api.h"

namespace farpage::cli {

// Tables of nodes, regions and totals.
std::string status_text(const std::vector<coordinator::NodeInfo>& nodes,
                        const std::vector<coordinator::RegionInfo>& regions);

}  // namespace farpage::cli
