// What `farpage status` prints.
#pragma once

#include <string>
#include <vector>

#include "coordinator/api.h"

namespace farpage::cli {

// Nodes, regions and totals, for people.
std::string status_text(const std::vector<coordinator::NodeInfo>& nodes,
                        const std::vector<coordinator::RegionInfo>& regions);

}  // namespace farpage::cli
