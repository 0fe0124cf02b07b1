#include "bench/self_check.h"

#include <gtest/gtest.h>

namespace farpage::bench {
namespace {

constexpr FaultClaim kGoodFaults{
    .measured_faults = 100, .reads = 90, .read_bytes = 90 * 4096, .prefetched_pages = 10};
constexpr EvictClaim kGoodEviction{.dirtied_pages = 110,
                                   .measured_pages = 100,
                                   .written_pages = 110,
                                   .write_bytes = 2 * 110 * 4096,
                                   .replicas = 2};
constexpr TransferClaim kGoodTransfer{.measured_operations = 100,
                                      .completed_ok = 100,
                                      .completed_bytes = 100 * 64,
                                      .operation_bytes = 64};

// A benchmark that performs no transfer is rejected by its own self-check.
TEST(Defect13, FaultBenchmarkThatMovedNothingPrintsNoNumber) {
  FaultClaim nothing_away = kGoodFaults;
  nothing_away.measured_faults = 0;
  FaultClaim nothing_fetched = kGoodFaults;
  nothing_fetched.reads = 0;
  nothing_fetched.read_bytes = 0;
  nothing_fetched.prefetched_pages = 0;
  FaultClaim no_bytes = kGoodFaults;
  no_bytes.read_bytes = 0;
  for (const FaultClaim& claim : {FaultClaim{}, nothing_away, nothing_fetched, no_bytes}) {
    const Status checked = check_fault_claim(claim);
    ASSERT_FALSE(checked);
    EXPECT_EQ(checked.error().code, ErrorCode::kConflict);
    EXPECT_NE(checked.error().context.find("no numbers for this run"), std::string::npos);
  }
}

TEST(Defect13, TransferBenchmarkThatMovedNothingPrintsNoNumber) {
  TransferClaim nothing_completed = kGoodTransfer;
  nothing_completed.completed_ok = 0;
  TransferClaim no_bytes = kGoodTransfer;
  no_bytes.completed_bytes = 0;
  for (const TransferClaim& claim : {TransferClaim{}, nothing_completed, no_bytes})
    EXPECT_FALSE(check_transfer_claim(claim));
}

TEST(Defect13, EvictBenchmarkThatWroteNothingPrintsNoNumber) {
  EvictClaim nothing_measured = kGoodEviction;
  nothing_measured.measured_pages = 0;
  EvictClaim nothing_written = kGoodEviction;
  nothing_written.written_pages = 0;
  EvictClaim no_bytes = kGoodEviction;
  no_bytes.write_bytes = 0;
  for (const EvictClaim& claim : {EvictClaim{}, nothing_measured, nothing_written, no_bytes}) {
    const Status checked = check_evict_claim(claim);
    ASSERT_FALSE(checked);
    EXPECT_NE(checked.error().context.find("no numbers for this run"), std::string::npos);
  }
}

TEST(Defect13, ControlBenchmarkThatAskedNothingPrintsNoNumber) {
  EXPECT_FALSE(check_request_claim({}));
  EXPECT_FALSE(check_request_claim({.answered_requests = 0, .counted_requests = 9}));
  EXPECT_FALSE(check_request_claim({.answered_requests = 9, .counted_requests = 8}));
  EXPECT_TRUE(check_request_claim({.answered_requests = 9, .counted_requests = 9}));
}

TEST(SelfCheck, EvictionThatMissesAPageOrAReplicaIsRefused) {
  EvictClaim claim = kGoodEviction;
  claim.written_pages -= 1;
  EXPECT_FALSE(check_evict_claim(claim));
  claim = kGoodEviction;
  claim.write_bytes -= 4096;
  EXPECT_FALSE(check_evict_claim(claim));
  claim = kGoodEviction;
  claim.replicas = 3;
  EXPECT_FALSE(check_evict_claim(claim));
}

TEST(SelfCheck, HonestRunsPass) {
  EXPECT_TRUE(check_evict_claim(kGoodEviction));
  EXPECT_TRUE(check_fault_claim(kGoodFaults));
  EXPECT_TRUE(check_transfer_claim(kGoodTransfer));
}

TEST(SelfCheck, MoreFaultsThanFetchedPagesIsRefused) {
  FaultClaim claim = kGoodFaults;
  claim.measured_faults = 101;
  EXPECT_FALSE(check_fault_claim(claim));
  claim.rescued_faults = 1;
  EXPECT_TRUE(check_fault_claim(claim));
}

TEST(SelfCheck, ShortReadsAreRefused) {
  FaultClaim faults = kGoodFaults;
  faults.read_bytes -= 1;
  EXPECT_FALSE(check_fault_claim(faults));
  TransferClaim transfer = kGoodTransfer;
  transfer.completed_bytes -= 1;
  EXPECT_FALSE(check_transfer_claim(transfer));
  transfer = kGoodTransfer;
  transfer.completed_ok -= 1;
  EXPECT_FALSE(check_transfer_claim(transfer));
}

}  // namespace
}  // namespace farpage::bench
