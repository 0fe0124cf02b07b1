// Version, commit and features of this binary.
#pragma once

#include <string>
#include <vector>

namespace farpage::cli {

struct BuildInfo {
  std::string version;
  std::string commit;  // "unknown" outside a git tree; "-dirty" with uncommitted changes
  std::string build_type;
  std::vector<std::string> transports;  // the valid names for --transports
};

BuildInfo build_info();

}  // namespace farpage::cli
