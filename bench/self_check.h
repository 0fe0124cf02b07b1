// The self-checks: a benchmark prints no number for a run that moved no data, or less than it
// measured.
#pragma once

#include <cstdint>
#include <thread>

#include "base/clock.h"
#include "base/result.h"

namespace farpage::bench {

// Counters are updated just after the work, so a failed check is retried for this time.
inline constexpr Nanoseconds kSettlePatience = Seconds(1);

// Calls `check` until it succeeds, for at most kSettlePatience, with `pause` between two calls.
// Returns its last result. Retries only kConflict: the claim may hold later.
template <typename Check>
Status until_settled(Check check, Nanoseconds pause = Nanoseconds(0)) {
  const Instant start = SteadyClock::read();
  while (true) {
    Status checked = check();
    if (checked || checked.error().code != ErrorCode::kConflict) return checked;
    if (SteadyClock::read() - start >= kSettlePatience) return checked;
    std::this_thread::sleep_for(pause);
  }
}

// The numbers of one fault benchmark, and the pager's counters of the same time.
struct FaultClaim {
  uint64_t measured_faults = 0;  // touches of remote pages
  uint64_t reads = 0;            // demand READs that completed
  uint64_t read_bytes = 0;
  uint64_t prefetched_pages = 0;
  uint64_t rescued_faults = 0;  // answered without a READ
};
// kConflict, and how to fix it, when the claim does not hold.
Status check_fault_claim(const FaultClaim& claim);

// The numbers of one evict benchmark.
struct EvictClaim {
  uint64_t dirtied_pages = 0;   // each dirtying must lead to one eviction
  uint64_t measured_pages = 0;  // of these, while the clock ran
  uint64_t written_pages = 0;   // by the evictor, and dropped
  uint64_t write_bytes = 0;     // acknowledged by the nodes
  uint32_t replicas = 1;
};
Status check_evict_claim(const EvictClaim& claim);

// The numbers of one control benchmark, and the coordinator's counters.
struct RequestClaim {
  uint64_t answered_requests = 0;
  uint64_t counted_requests = 0;
};
Status check_request_claim(const RequestClaim& claim);

// The numbers of READs and WRITEs that a benchmark posts itself.
struct TransferClaim {
  uint64_t measured_operations = 0;
  uint64_t completed_ok = 0;
  uint64_t completed_bytes = 0;
  uint64_t operation_bytes = 0;
};
Status check_transfer_claim(const TransferClaim& claim);

}  // namespace farpage::bench
