// A store that remembers nothing beyond the life of its process.
#pragma once

#include <memory>

#include "coordinator/store.h"

namespace farpage::coordinator {

// A coordinator on it that restarts knows nothing: nodes join again by themselves, borrowers must
// make new regions, and slabs that are still lent to the old ones are left alone (409 of the
// agent).
std::unique_ptr<Store> make_memory_store();

}  // namespace farpage::coordinator
