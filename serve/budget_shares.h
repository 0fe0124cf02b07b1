// How the processes of a group share one budget of resident pages.
//
// Shares follow page-fault frequency (Chu and Opderbeck, "The page fault frequency replacement
// algorithm", AFIPS 1972): a process that faults gets room from those that fault less than half as
// often, until their rates are alike. A process that does not fault keeps little more than it uses,
// and gives that too, a quarter at each step, down to kFloorPages. One that faults keeps half of
// the equal share, whatever the others do.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace farpage::serve {

inline constexpr uint64_t kFloorPages = 64;  // of each process, as long as the budget has room

struct BudgetMember {
  uint64_t limit = 0;  // pages it may have resident now; 0: it has just arrived
  uint64_t used = 0;   // pages resident now
  uint64_t least = 0;  // the smallest limit that it can have (pinned pages)
  double faults = 0;   // faults of a step that needed a page of room, averaged over the last ones
};

// The next limits, in the order of the members. Invariants:
//  1. the sum is at most `total`, unless floors and pinned pages need more;
//  2. a limit grows only by pages that no member has resident or may have: a page that a limit
//     loses is granted to another member at a later step, after its eviction.
// A new member is the exception to 2: it starts with a floor. Threads: any.
std::vector<uint64_t> divide_budget(uint64_t total, std::span<const BudgetMember> members);

}  // namespace farpage::serve
