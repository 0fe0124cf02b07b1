// FlushCost: what this machine takes for a change of a page table that other CPUs have to be told
// of.
//
// Where the hypervisor emulates page tables (no nested paging), it stops every running virtual CPU
// for it, whatever that one runs. So a page that leaves costs its program several times as much
// while a second CPU is busy: docs/experiments/emulated-page-tables.md.
#pragma once

#include <optional>

#include "base/clock.h"
#include "base/result.h"

namespace farpage::cli {

// Of one madvise(MADV_DONTNEED) of a present page.
struct FlushCost {
  // This process runs on one CPU; what others do on theirs is avoided as far as possible.
  Nanoseconds alone{};
  // Another process, with memory of its own, computes on a second CPU.
  Nanoseconds beside_busy_cpu{};

  // Whether the hypervisor emulates page tables. An interrupt to a CPU that runs the same process
  // takes 1 to 18 us, and none is needed for one that runs another process.
  bool stops_other_cpus() const {
    return beside_busy_cpu >= kSlow && beside_busy_cpu >= alone * kTimesSlower;
  }
  static constexpr Nanoseconds kSlow = std::chrono::microseconds(25);
  static constexpr int64_t kTimesSlower = 3;
};

// Takes up to 5 ms, and less than 1 where flushes are fast; 50 more where the second CPU is not to
// be had. Empty: this process may use only one CPU. Call it while this process has one thread.
Result<std::optional<FlushCost>> measure_flush_cost();

}  // namespace farpage::cli
