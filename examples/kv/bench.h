// The bench: phases over stores with far values. Each read checks the value.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kv/options.h"

namespace kv {

struct PhaseResult {
  std::string name;
  uint64_t operations = 0;
  uint64_t bytes = 0;     // of values, written or read
  uint64_t verified = 0;  // values with the checksum of their key and version
  uint64_t wrong = 0;     // any other result
  double seconds = 0;
  double p50_us = 0;
  double p99_us = 0;
};

struct BenchResult {
  std::vector<PhaseResult> phases;  // fill, warm-up, read, verify, delete
  uint64_t value_bytes = 0;         // after fill
  farpage::RegionStats after_verify;
  uint64_t allocated_after_delete = 0;

  bool all_right() const;
};

// The region that such a bench needs.
uint64_t region_bytes(const BenchOptions& options);

// The result, or the error that prevented a phase. Calls `begins` with the name of each phase.
farpage::RegionResult<BenchResult> run_bench(
    const BenchOptions& options, farpage::Region& region,
    const std::function<void(const std::string& phase)>& begins);

}  // namespace kv
