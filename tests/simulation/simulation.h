// One seeded run of a whole cluster: an engine, programs that use far memory and fork, memory nodes
// that die and restart, a coordinator that comes and goes.
#pragma once

#include <cstdint>
#include <string>

#include "trace.h"

namespace farpage::simulation {

struct Outcome {
  std::string failure;  // empty: every invariant held
  uint64_t trace_hash = 0;
  uint64_t steps = 0;
  uint64_t remote_faults = 0;
  uint64_t evicted = 0;
  uint64_t prefetched = 0;
  uint64_t from_copies = 0;
  uint64_t repaired = 0;  // slabs
  uint64_t bus_errors = 0;
  uint64_t forks = 0;
};

// Invariants:
//  1. a read sees the last write of its word, or zeros if there was none; nothing else, whatever
//     fails;
//  2. a page is lost (SIGBUS) only if all nodes with a copy of it have died or have damaged it, or
//     nothing can be written back any more;
//  3. every access ends in time;
//  4. those of PageWords, at each change of a page's word;
//  5. a pinned page stays;
//  6. when nothing is under way, page table, budget and address space agree, and no more pages are
//     present than the budget allows;
//  7. at the end no region is held;
//  8. where no bit of a node's memory has changed, no page is found wrong.
// Threads: one run in a process.
Outcome simulate(uint64_t seed, Trace& trace);

}  // namespace farpage::simulation
