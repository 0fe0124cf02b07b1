// Bringing back all that is away.
#pragma once

#include "pager/core.h"

namespace farpage::pager {

// Every page that is away is present when this returns true, so that a copy-on-write copy of the
// target's memory would be whole. False: one of them is lost or cannot be read, or the pager stops.
// The caller has stood eviction still and lifted the budget's limit. Threads: any but a fault
// worker (each page is fetched by one).
bool pull_in(Core& core);

}  // namespace farpage::pager
