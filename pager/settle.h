// Settles what the threads of a dead engine had in their hands.
#pragma once

#include "pager/target.h"

namespace farpage::pager {

// Each page of the table gets a state that no thread owns:
//
//   page was                        becomes
//   Fetching, nothing remote        Dirty, after zeros were placed where nothing is
//   Fetching, from remote           Remote with kMaybePresent: the slot has it, unless it is here
//   Unprotecting                    Dirty: the writer has written, or faults again
//   Evicting                        Dirty if it was, else Clean: it is present, and its slot may be
//                                   torn only if it was dirty
//   Dropping                        dropped again, then Remote, or Empty if it was all zeros
//   others                          as they are: no thread owned them
//
// Then all threads that wait for a page are woken; those that still need one fault again. False:
// the target is gone.
// Threads: one, before the target is served. The predecessor's drops have ended.
bool settle_pages(Target& target);

}  // namespace farpage::pager
