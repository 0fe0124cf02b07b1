#include "pager/stats.h"

#include <gtest/gtest.h>

#include <memory>

namespace farpage::pager {
namespace {

TEST(PagerStats, SumsItsThreadsAndExportsTheSameNumbers) {
  WorkerCounts first;
  WorkerCounts second;
  EvictorCounts evictor;
  const auto times = std::make_unique<TargetTimes>();
  first.faults_remote.add(3);
  second.faults_remote.add(4);
  times->fault_ns.record(1000);
  times->fault_ns.record(3000);
  evictor.pages_written.add(5);
  evictor.pages_clean.add(6);
  second.completions_by_status[static_cast<size_t>(rdma::CompletionStatus::kTimedOut)].add(2);
  PagerStats sum;
  sum.add(first);
  sum.add(second);
  sum.add(evictor);
  sum.add(*times);
  EXPECT_EQ(sum.faults_remote, 7U);
  EXPECT_EQ(sum.evictions(), 11U);
  EXPECT_EQ(sum.fault_ns.count(), 2U);
  const coordinator::Counters counters = sum.counters();
  EXPECT_EQ(counters.at("farpage_faults_total{kind=\"remote\"}"), 7U);
  EXPECT_EQ(counters.at("farpage_evictions_total{kind=\"written\"}"), 5U);
  EXPECT_EQ(counters.at("farpage_errors_total{code=\"" +
                        std::string(to_string(rdma::CompletionStatus::kTimedOut)) + "\"}"),
            2U);
}

TEST(PagerStats, ExportsItsFaultTimesAsAHistogram) {
  const auto times = std::make_unique<TargetTimes>();
  for (const uint64_t ns : {1'000U, 7'000U, 30'000U, 30'000U, 2'000'000'000U})
    times->fault_ns.record(ns);
  PagerStats sum;
  sum.add(*times);
  coordinator::Counters counters = sum.counters();
  const auto bucket = [&](const std::string& edge) {
    return counters.at("farpage_fault_seconds_bucket{le=\"" + edge + "\"}");
  };
  EXPECT_EQ(bucket("0.0000025"), 1U);
  EXPECT_EQ(bucket("0.000005"), 1U);
  EXPECT_EQ(bucket("0.00001"), 2U);
  EXPECT_EQ(bucket("0.00005"), 4U);
  EXPECT_EQ(bucket("1"), 4U);
  EXPECT_EQ(counters.at("farpage_fault_seconds_count"), 5U);
  EXPECT_EQ(counters.at("farpage_fault_seconds_sum_ns"), 2'000'068'000U);
}

}  // namespace
}  // namespace farpage::pager
