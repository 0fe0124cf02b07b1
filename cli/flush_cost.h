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
  Nanoseconds alone{};  // this process runs on one CPU, and the others do what they do
  Nanoseconds
      beside_busy_cpu{};  // another process, with memory of its own, computes on a second CPU

  // Whether the hypervisor emulates page tables. An interrupt to a CPU that runs the same process
  // takes 1 to 18 us, and none is needed for one that runs another process.
  bool stops_other_cpus() const {
    return beside_busy_cpu >= kSlow && beside_busy_cpu >= alone * kTimesSlower;
  }
  static constexpr Nanoseconds kSlow = std::chrono::microseconds(25);
  static constexpr int64_t kTimesSlower = 3;
};

// Medians. Takes up to 5 ms, and less than 1 where flushes are fast. Empty: this process may use
// only one CPU. Call it while this process has one thread.
Result<std::optional<FlushCost>> measure_flush_cost();

}  // namespace farpage::cli
