#include "bench/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bench/report_files.h"

namespace farpage::bench {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// 1, 2, ... 1000 microseconds.
Report report_of_a_thousand() {
  Report report;
  report.benchmark = "fault";
  report.environment = observe_environment();
  report.environment.commit = "abc";
  report.configuration = {{"Transport", "tcp"}};
  Row row{"remote fault", 4096, {}};
  for (uint64_t i = 1; i <= 1000; ++i) row.latency_ns.record(i * 1000);
  report.rows.push_back(row);
  report.stages = {{"wire", 1.5, 1.25, 3}, {"rest", 2.5}};
  report.figures = {{"faults_per_s", 12345.5}};
  report.counts = {{"reads", 1000}};
  return report;
}

TEST(Report, JsonIsValidAndHasEveryFigure) {
  const json all = json::parse(format_json(report_of_a_thousand()), nullptr, false);
  ASSERT_TRUE(all.is_object());
  EXPECT_EQ(all["benchmark"], "fault");
  EXPECT_EQ(all["environment"]["commit"], "abc");
  for (const char* name : {"host", "processor", "kernel", "load", "date", "command"})
    EXPECT_FALSE(all["environment"][name].get<std::string>().empty()) << name;
  EXPECT_GE(all["environment"]["cpus"], 1);
  EXPECT_EQ(all["configuration"]["Transport"], "tcp");
  EXPECT_EQ(all["stages"][0]["p50"], 1.25);
  EXPECT_EQ(all["stages"][1]["mean"], 2.5);
  EXPECT_TRUE(all["stages"][1]["p50"].is_null());
  EXPECT_EQ(all["figures"]["faults_per_s"], 12345.5);
  EXPECT_EQ(all["counts"]["reads"], 1000);
}

TEST(Report, PercentilesAreRightToOnePercent) {
  const json row = json::parse(format_json(report_of_a_thousand()))["rows"][0];
  EXPECT_EQ(row["iterations"], 1000);
  EXPECT_EQ(row["bytes"], 4096);
  const auto near = [&](const char* name, double right) {
    EXPECT_NEAR(row[name].get<double>(), right, right / 100) << name;
  };
  near("t_min", 1);
  near("t_typical", 500);
  near("t_avg", 500.5);
  near("t_stdev", 288.7);
  near("p90", 900);
  near("p99", 990);
  near("p99.9", 999);
  near("t_max", 1000);
}

TEST(Report, BytesThatAreNoTextLeaveTheJsonValid) {
  Report report = report_of_a_thousand();
  report.environment.command = "farpage \xff\" \n";
  EXPECT_TRUE(json::parse(format_json(report), nullptr, false).is_object());
}

TEST(Report, TextHasPerftestsColumns) {
  const std::string text = format_text(report_of_a_thousand());
  EXPECT_THAT(text, HasSubstr("#bytes #iterations  t_min[usec]  t_max[usec]  t_typical[usec]  "
                              "t_avg[usec]  t_stdev[usec]  99%[usec]  99.9%[usec]"));
  for (const char* part :
       {"Kernel", "Machine", "Command", "abc", "remote fault", "wire", "12345.5"})
    EXPECT_THAT(text, HasSubstr(part));
}

TEST(Report, ThroughputIsOperationsOverTimeInEveryForm) {
  Report report = report_of_a_thousand();
  report.throughputs = {
      {.name = "scan, tcp", .bytes = 4096, .operations = 5000, .elapsed = Seconds(2)}};
  EXPECT_DOUBLE_EQ(report.throughputs[0].per_second(), 2500);
  EXPECT_DOUBLE_EQ(report.throughputs[0].mb_per_second(), 10.24);
  EXPECT_EQ(Throughput{}.per_second(), 0);
  const std::string text = format_text(report);
  EXPECT_THAT(text, HasSubstr("BW average[MB/sec]"));
  EXPECT_THAT(text, HasSubstr("10.24"));
  const json row = json::parse(format_json(report))["throughputs"][0];
  EXPECT_EQ(row["name"], "scan, tcp");
  EXPECT_EQ(row["iterations"], 5000);
  EXPECT_DOUBLE_EQ(row["MB_per_s"], 10.24);
  const std::string page = format_html(report);
  EXPECT_THAT(page, HasSubstr("Throughput"));
  EXPECT_THAT(page, HasSubstr("10.24"));
}

TEST(Report, WithoutRowsItPrintsNoColumns) {
  Report report;
  EXPECT_THAT(format_text(report), testing::Not(HasSubstr("#bytes")));
  EXPECT_TRUE(json::parse(format_json(report))["rows"].empty());
}

}  // namespace
}  // namespace farpage::bench
