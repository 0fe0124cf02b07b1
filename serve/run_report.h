// What `farpage run --stats` prints and --stats-file writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serve/target_service.h"

namespace farpage::serve {

std::string format_report(const std::vector<TargetReport>& targets);
std::string json_report(const std::vector<TargetReport>& targets, int exit_status);

// Where the memory of a run has been.
struct MemoryUse {
  uint64_t local_bytes = 0;  // the budget
  uint64_t peak_bytes = 0;   // the most that one process had resident
  uint64_t far_bytes = 0;  // what became far, all processes together; pages that were given up and
                           // came into being again count each time
};
MemoryUse memory_use(const std::vector<TargetReport>& targets, uint64_t local_bytes,
                     uint64_t peak_bytes);

// One line, when the program had far more resident than its budget and next to nothing of it was
// far memory; else "". A peak of kMaxUnseenBytes above the budget is no reason: programs and their
// libraries are that large.
inline constexpr uint64_t kMaxUnseenBytes = uint64_t{64} << 20;
std::string local_memory_warning(const MemoryUse& use);

}  // namespace farpage::serve
