#include "bench/self_check.h"

#include <fmt/format.h>

#include "base/strong.h"

namespace farpage::bench {

Status check_fault_claim(const FaultClaim& claim) {
  const auto refuse = [](std::string why) {
    return fail(ErrorCode::kConflict, "no numbers for this run: " + std::move(why));
  };
  if (claim.measured_faults == 0)
    return refuse(
        "no touched page was remote; --size must be larger than --local, and --iterations large "
        "enough");
  const uint64_t fetched = claim.reads + claim.prefetched_pages;
  if (fetched == 0) return refuse("the pager fetched no page, so nothing came from a memory node");
  if (claim.read_bytes != claim.reads * kPageBytes)
    return refuse(
        fmt::format("{} READs of a page brought {} bytes", claim.reads, claim.read_bytes));
  if (fetched + claim.rescued_faults < claim.measured_faults)
    return refuse(fmt::format("{} faults were measured, but the pager fetched only {} pages",
                              claim.measured_faults, fetched));
  return {};
}

Status check_evict_claim(const EvictClaim& claim) {
  const auto refuse = [](std::string why) {
    return fail(ErrorCode::kConflict, "no numbers for this run: " + std::move(why));
  };
  if (claim.measured_pages == 0 || claim.written_pages == 0) return refuse("no page was evicted");
  if (claim.dirtied_pages < claim.measured_pages || claim.written_pages < claim.dirtied_pages)
    return refuse(fmt::format("{} pages were dirtied to be evicted, but the evictor wrote only {}",
                              claim.dirtied_pages, claim.written_pages));
  const uint64_t needed = claim.written_pages * kPageBytes * claim.replicas;
  if (claim.write_bytes < needed)
    return refuse(fmt::format("{} pages on {} node(s) are {} bytes, but {} were written",
                              claim.written_pages, claim.replicas, needed, claim.write_bytes));
  return {};
}

Status check_request_claim(const RequestClaim& claim) {
  const auto refuse = [](std::string why) {
    return fail(ErrorCode::kConflict, "no numbers for this run: " + std::move(why));
  };
  if (claim.answered_requests == 0) return refuse("no request was answered");
  if (claim.counted_requests < claim.answered_requests)
    return refuse(fmt::format("{} requests were measured, the coordinator counted {}",
                              claim.answered_requests, claim.counted_requests));
  return {};
}

Status check_transfer_claim(const TransferClaim& claim) {
  const auto refuse = [](std::string why) {
    return fail(ErrorCode::kConflict, "no numbers for this run: " + std::move(why));
  };
  if (claim.measured_operations == 0 || claim.completed_ok == 0)
    return refuse("no operation completed");
  if (claim.completed_ok != claim.measured_operations)
    return refuse(fmt::format("{} operations were measured, {} succeeded",
                              claim.measured_operations, claim.completed_ok));
  if (claim.completed_bytes != claim.completed_ok * claim.operation_bytes)
    return refuse(fmt::format("{} operations of {} bytes moved {} bytes", claim.completed_ok,
                              claim.operation_bytes, claim.completed_bytes));
  return {};
}

}  // namespace farpage::bench
