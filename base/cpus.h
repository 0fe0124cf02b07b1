// The CPUs on which threads may run.
#pragma once

#include <sys/types.h>

#include <span>
#include <vector>

namespace farpage {

// In ascending order. Those of a thread; 0: of the calling one. A process' id is its first
// thread's. Empty: the kernel does not tell.
std::vector<int> allowed_cpus(pid_t thread = 0);

// Moves the calling thread. False: the kernel refuses, as where none of them exists.
bool run_on(std::span<const int> cpus);
inline bool run_on(int cpu) {
  return run_on(std::span(&cpu, 1));
}

}  // namespace farpage
