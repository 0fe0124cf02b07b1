// The output of `farpage run --stats` and --stats-file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serve/target_service.h"

namespace farpage::serve {

std::string format_report(const std::vector<TargetReport>& targets);
std::string json_report(const std::vector<TargetReport>& targets, int exit_status);

// Local and far memory of a run.
struct MemoryUse {
  uint64_t local_bytes = 0;  // the budget
  uint64_t peak_bytes = 0;   // the highest resident memory of one process
  uint64_t far_bytes = 0;  // what became far memory in all processes; a page that was discarded and
                           // created again counts each time
};
MemoryUse memory_use(const std::vector<TargetReport>& targets, uint64_t local_bytes,
                     uint64_t peak_bytes);

// One line when the resident memory of the program was far above its budget and almost none of it
// was far memory; else "". Up to kMaxUnseenBytes above the budget is normal: programs and their
// libraries are that large.
inline constexpr uint64_t kMaxUnseenBytes = uint64_t{64} << 20;
std::string local_memory_warning(const MemoryUse& use);

}  // namespace farpage::serve
