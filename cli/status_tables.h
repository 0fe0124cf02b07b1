// The text output of `farpage status`.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "coordinator/api.h"
#include "serve/pager_messages.h"

namespace farpage::cli {

// Tables of nodes, regions and totals.
std::string status_text(const std::vector<coordinator::NodeInfo>& nodes,
                        const std::vector<coordinator::RegionInfo>& regions);

// The programs of a pager, with their faults between two looks at it.
std::string pager_text(const serve::PagerStatus& before, const serve::PagerStatus& now,
                       Milliseconds between);

}  // namespace farpage::cli
