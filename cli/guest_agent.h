// An agent for a VMM that `farpage serve --local` serves.
#pragma once

#include "snapshot/far_guests.h"

namespace farpage::cli {

// Pages of the agent's staging area.
uint64_t guest_staging_pages();

// As snapshot::GiveAgent. kConflict: the VMM restricts its system calls, is traced or stopped, or
// has far memory already. kInvalid: a region is not private anonymous memory that can be moved.
Result<snapshot::GuestAgent> give_agent(pid_t pid, int userfaultfd, uint64_t features,
                                        const std::vector<snapshot::GuestRegion>& regions);

}  // namespace farpage::cli
