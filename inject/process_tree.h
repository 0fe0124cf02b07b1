// Which processes descend from a program, and which have been forked from it: what /proc/*/stat
// tells.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "inject/process_files.h"

namespace farpage::inject {

// Where the kernel has placed the program at its exec. A forked child has the same, whoever its
// parent is by now; two programs have the same only by chance, or without randomised addresses.
struct MemoryLayout {
  uint64_t code = 0;
  uint64_t stack = 0;
  uint64_t heap = 0;
  bool operator==(const MemoryLayout&) const = default;
};

struct ProcessFacts {
  pid_t pid = 0;
  pid_t parent = 0;
  Nanoseconds age{};    // since its fork; exact to 1 / sysconf(_SC_CLK_TCK) seconds
  MemoryLayout layout;  // zeros: a thread of the kernel, or not for this user to see
};

// Of /proc/PID/stat. nullopt: it is no such text. `uptime`: CLOCK_BOOTTIME.
std::optional<ProcessFacts> parse_process(std::string_view stat, Nanoseconds uptime);

std::optional<ProcessFacts> facts_of(const ProcessFiles& process);
// All processes that this one sees.
std::vector<ProcessFacts> all_processes();

// The children of `pid`, theirs, and so on, parents first; without the process `except` and what it
// has started.
std::vector<pid_t> descendants_of(pid_t pid, std::span<const ProcessFacts> processes, pid_t except);

// Do both have one address space (CLONE_VM, vfork)?
bool share_memory(pid_t one, pid_t other);

// Has a userfaultfd any memory of the process?
bool has_registered_memory(const ProcessFiles& process);

}  // namespace farpage::inject
