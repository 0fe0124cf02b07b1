// Which planted defect (defects/*.patch) this run has. Only the planted variant has any.
#pragma once

#include <cstdint>

namespace farpage::simulation {

void plant(uint64_t defect);  // 0: none
bool planted(uint64_t defect);

}  // namespace farpage::simulation
