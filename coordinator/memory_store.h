// A store in memory: its contents end with the process.
#pragma once

#include <memory>

#include "coordinator/store.h"

namespace farpage::coordinator {

// After a restart the coordinator knows nothing: nodes rejoin by themselves, borrowers must create
// new regions, and slabs still leased to old regions are skipped (409 from the agent).
std::unique_ptr<Store> make_memory_store();

}  // namespace farpage::coordinator
