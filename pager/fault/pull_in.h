// Fetching all remote pages.
#pragma once

#include "pager/target.h"

namespace farpage::pager {

// When this returns true, every remote page is present, so a copy-on-write copy of the target's
// memory would be complete. False: a page is lost or cannot be read, or the pager stops. The caller
// has paused eviction and lifted the budget's limit. Threads: any but a fault worker (each page is
// fetched by one).
bool pull_in(Target& target);

}  // namespace farpage::pager
