#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "bench/connect_bench.h"
#include "bench/control_bench.h"
#include "bench/control_load.h"
#include "bench/evict_bench.h"
#include "bench/fault_bench.h"
#include "bench/ladder.h"
#include "bench/raw_rate.h"
#include "bench/read_bench.h"
#include "bench/register_bench.h"
#include "bench/scan_bench.h"

namespace farpage::bench {
namespace {

using testing::HasSubstr;

void expect_refused(const Status& status, const std::string& flag) {
  ASSERT_FALSE(status) << flag;
  EXPECT_EQ(status.error().code, ErrorCode::kInvalid);
  EXPECT_THAT(status.error().context, HasSubstr(flag));
}

class NamedTransport final : public rdma::Transport {
 public:
  explicit NamedTransport(rdma::TransportKind kind) : kind_(kind) {}
  rdma::TransportKind kind() const override { return kind_; }
  Result<std::unique_ptr<rdma::Channel>> connect(const rdma::TransportAddress&,
                                                 const rdma::ChannelOptions&,
                                                 const rdma::QueuePairExchange&) override {
    return fail(ErrorCode::kUnsupported, "a name alone");
  }

 private:
  rdma::TransportKind kind_;
};

TEST(FaultOptions, DefaultsAreValidWithAndWithoutEviction) {
  FaultOptions options;
  EXPECT_TRUE(validate(options, {}));
  options.evict = false;
  EXPECT_TRUE(validate(options, {}));
}

TEST(FaultOptions, WrongOnesAreRefusedByTheNameOfTheFlag) {
  const auto with = [](auto change) {
    FaultOptions options;
    change(options);
    return validate(options, {});
  };
  expect_refused(with([](auto& o) { o.threads = 0; }), "--threads");
  expect_refused(with([](auto& o) { o.threads = kMaxThreads + 1; }), "--threads");
  expect_refused(with([](auto& o) { o.iterations = 0; }), "--iterations");
  expect_refused(with([](auto& o) { o.bytes = kPageBytes - 1; }), "--size");
  expect_refused(with([](auto& o) { o.duration = kMaxDuration + Milliseconds(1); }), "--duration");
  expect_refused(with([](auto& o) { o.rate_per_s = kMaxRatePerSecond + 1; }), "--rate");
  expect_refused(with([](auto& o) { o.compute = kMaxCompute + std::chrono::microseconds(1); }),
                 "--compute-us");
  expect_refused(with([](auto& o) {
                   o.rate_per_s = 1;
                   o.compute = std::chrono::microseconds(1);
                 }),
                 "--compute-us");
  expect_refused(with([](auto& o) {
                   o.duration = Seconds(1);
                   o.evict = false;
                 }),
                 "--no-evict");
  expect_refused(with([](auto& o) { o.record = true, o.threads = 2; }), "--record");
  expect_refused(with([](auto& o) { o.record = true, o.evict = false; }), "--record");
  expect_refused(with([](auto& o) { o.bytes = kMaxBytes + kPageBytes; }), "--size");
}

TEST(FaultOptions, EveryFaultModeHasANameThatLeadsBackToIt) {
  EXPECT_EQ(FaultOptions{}.faults, FaultMode::kInWorker);
  for (const FaultMode mode : {FaultMode::kInWorker, FaultMode::kInHandler})
    EXPECT_EQ(fault_mode_from(to_string(mode)), mode);
  EXPECT_NE(to_string(FaultMode::kInWorker), to_string(FaultMode::kInHandler));
  EXPECT_EQ(fault_mode_from("kernel"), std::nullopt);
}

TEST(FaultReport, SaysWhoResolvedTheFaults) {
  const auto faults = [](FaultMode mode) {
    FaultResult result;
    result.faults = mode;
    const Report report = fault_report({}, {}, result);
    for (const auto& [name, value] : report.configuration)
      if (name == "Faults") return value;
    return std::string();
  };
  EXPECT_THAT(faults(FaultMode::kInWorker), HasSubstr("fault workers"));
  EXPECT_THAT(faults(FaultMode::kInHandler), HasSubstr("SIGBUS handler"));
}

TEST(FaultOptions, WithoutEvictionAllMustBeTouchedOnceAndStay) {
  FaultOptions options;
  options.evict = false;
  options.bytes = 10'000 * kPageBytes;  // not more than the iterations, and no page to warm up on
  expect_refused(validate(options, {}), "--iterations");
  options.bytes = uint64_t{256} << 20;
  pager::PagerOptions small;
  small.local_bytes = 10'000 * kPageBytes;
  expect_refused(validate(options, small), "--local");
}

TEST(FaultOptions, WithoutEvictionTheWindowHoldsWhatPushesTheOthersOut) {
  FaultOptions options;
  const pager::PagerOptions pager;
  EXPECT_EQ(window_bytes(options, pager), options.bytes);
  options.evict = false;
  EXPECT_GT(window_bytes(options, pager), options.bytes + pager.local_bytes);
}

TEST(ReadOptions, WrongOnesAreRefusedByTheNameOfTheFlag) {
  const auto with = [](auto change) {
    ReadOptions options;
    change(options);
    return validate(options);
  };
  EXPECT_TRUE(validate(ReadOptions{}));
  EXPECT_TRUE(with([](auto& o) { o.bytes = kMaxOperationBytes; }));
  expect_refused(with([](auto& o) { o.bytes = 0; }), "--bytes");
  expect_refused(with([](auto& o) { o.bytes = 4; }), "--bytes");
  expect_refused(with([](auto& o) { o.bytes = 5000; }), "--bytes");
  expect_refused(with([](auto& o) { o.bytes = 2 * kMaxOperationBytes; }), "--bytes");
  expect_refused(with([](auto& o) { o.duration = kMaxDuration + Milliseconds(1); }), "--duration");
  expect_refused(with([](auto& o) { o.depth = 0; }), "--depth");
  expect_refused(with([](auto& o) { o.depth = kMaxDepth + 1; }), "--depth");
  expect_refused(with([](auto& o) { o.depth = o.channel.operations_in_flight + 1; }), "--depth");
  expect_refused(with([](auto& o) { o.iterations = 0; }), "--iterations");
}

TEST(ScanOptions, WrongOnesAreRefusedByTheNameOfTheFlag) {
  const auto with = [](auto change) {
    ScanOptions options;
    change(options);
    return validate(options);
  };
  EXPECT_TRUE(validate(ScanOptions{}));
  expect_refused(with([](auto& o) { o.threads = 0; }), "--threads");
  expect_refused(with([](auto& o) { o.threads = kMaxThreads + 1; }), "--threads");
  expect_refused(with([](auto& o) { o.bytes = kPageBytes - 1; }), "--size");
  expect_refused(with([](auto& o) { o.bytes = kMaxBytes + kPageBytes; }), "--size");
  EXPECT_EQ(scan_bytes({.bytes = kPageBytes}, {}), 2 * coordinator::kDefaultSlabBytes);
}

TEST(EvictOptions, DirtyMemoryStaysBelowTheLowWaterMark) {
  pager::PagerOptions pager;
  pager.local_bytes = 1000 * kPageBytes;
  pager.low_water_percent = 90;
  EXPECT_EQ(dirty_pages({}, pager), 900U);
  EXPECT_TRUE(validate(EvictOptions{}, pager));
  EXPECT_TRUE(validate(EvictOptions{.bytes = 900 * kPageBytes}, pager));
  expect_refused(validate(EvictOptions{.bytes = 901 * kPageBytes}, pager), "--size");
  expect_refused(validate(EvictOptions{.bytes = 1}, pager), "--size");
  expect_refused(validate(EvictOptions{.rounds = 0}, pager), "--iterations");
  expect_refused(validate(EvictOptions{.duration = kMaxDuration + Milliseconds(1)}, pager),
                 "--duration");
}

TEST(ControlBenchmarks, WrongOptionsAreRefusedByTheNameOfTheFlag) {
  constexpr Milliseconds kTooLong = kMaxDuration + Milliseconds(1);
  EXPECT_TRUE(validate(ConnectOptions{}));
  expect_refused(validate(ConnectOptions{.iterations = 0}), "--iterations");
  expect_refused(validate(ConnectOptions{.duration = kTooLong}), "--duration");
  EXPECT_TRUE(validate(RegisterOptions{}));
  expect_refused(validate(RegisterOptions{.iterations = 0}), "--iterations");
  expect_refused(validate(RegisterOptions{.duration = kTooLong}), "--duration");
  EXPECT_TRUE(validate(ControlOptions{}));
  expect_refused(validate(ControlOptions{.iterations = 3, .threads = 4}), "--iterations");
  expect_refused(validate(ControlOptions{.duration = kTooLong}), "--duration");
  expect_refused(validate(ControlOptions{.threads = 0}), "--threads");
  expect_refused(validate(ControlOptions{.threads = kMaxThreads + 1}), "--threads");
}

TEST(ControlBenchmarks, RequestsAreAddedUpFromTheCoordinatorsCounters) {
  EXPECT_EQ(requests_in(""), 0U);
  EXPECT_EQ(requests_in("# HELP farpage_coordinator_requests_total Requests\n"
                        "farpage_coordinator_requests_total{route=\"a b\",code=\"200\"} 17\n"
                        "farpage_coordinator_requests_totals{code=\"200\"} 100\n"
                        "farpage_coordinator_requests_total{route=\"c\",code=\"404\"} 4"),
            21U);
}

TEST(ControlLoad, WrongOptionsAreRefusedByTheNameOfTheFlag) {
  EXPECT_TRUE(validate(ControlLoadOptions{}).has_value());
  expect_refused(validate(ControlLoadOptions{.regions = 0}), "--regions");
  expect_refused(validate(ControlLoadOptions{.regions = 2, .leases = 1}), "--leases");
  expect_refused(validate(ControlLoadOptions{.duration = Milliseconds(999)}), "--duration");
  expect_refused(validate(ControlLoadOptions{.duration = kMaxDuration + Milliseconds(1)}),
                 "--duration");
}

TEST(ControlLoad, FactsOfAProcessAreThoseOfProc) {
  const auto facts = facts_of_process(::getpid());
  ASSERT_TRUE(facts.has_value()) << facts.error().message();
  EXPECT_GE(facts->threads, 1U);
  EXPECT_GT(facts->resident_bytes, size_t{1} << 20);
  EXPECT_GE(facts->peak_resident_bytes, facts->resident_bytes);
  EXPECT_EQ(facts_of_process(1 << 30).error().code, ErrorCode::kNotFound);
}

TEST(RawRate, TransportWithTheMostChannelsIsTheConnectedOne) {
  std::vector<std::unique_ptr<rdma::Transport>> transports;
  for (const auto kind : {rdma::TransportKind::kShm, rdma::TransportKind::kTcp})
    transports.push_back(std::make_unique<NamedTransport>(kind));
  pager::PagerStats stats;
  EXPECT_EQ(connected_transport(stats, transports), nullptr);
  EXPECT_EQ(names_of_transports(stats), "");
  stats.connected_by_kind[static_cast<size_t>(rdma::TransportKind::kTcp)] = 2;
  EXPECT_EQ(names_of_transports(stats), "tcp");
  EXPECT_EQ(connected_transport(stats, transports), transports[1].get());
  stats.connected_by_kind[static_cast<size_t>(rdma::TransportKind::kShm)] = 3;
  EXPECT_EQ(connected_transport(stats, transports), transports[0].get());
}

TEST(Ladder, OverheadIsTheFaultAboveItsParts) {
  Histogram fault;
  Histogram read;
  Histogram local;
  fault.record(60'000);
  read.record(30'000);
  local.record(20'000);
  const Overhead overhead = overhead_of(fault, read, local);
  EXPECT_NEAR(overhead.floor_us, 50, 0.5);
  EXPECT_NEAR(overhead.above_us(), 10, 1);
  EXPECT_NEAR(overhead.above_percent(), 20, 2);
  EXPECT_EQ(overhead_of(fault, {}, {}).above_percent(), 0);
}

}  // namespace
}  // namespace farpage::bench
