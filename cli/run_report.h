// What `farpage run --stats` prints and --stats-file writes.
#pragma once

#include <string>
#include <vector>

#include "cli/target_service.h"

namespace farpage::cli {

std::string format_report(const std::vector<TargetReport>& targets);
std::string json_report(const std::vector<TargetReport>& targets, int exit_status);

}  // namespace farpage::cli
