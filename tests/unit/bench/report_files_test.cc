#include "bench/report_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace farpage::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

Report report_of_a_hundred() {
  Report report;
  report.benchmark = "fault";
  report.environment = observe_environment();
  report.environment.command = "farpage bench fault --html <x&y>";
  Row row{"remote fault, tcp", 4096, {}};
  for (uint64_t i = 1; i <= 100; ++i) row.latency_ns.record(i * 1000);
  report.rows.push_back(row);
  report.rows.push_back({"never measured", 4096, {}});
  report.stages = {{"wire", 2, 1.25, 3}, {"wake", 4, 1, 2}};
  report.counts = {{"reads", 100}};
  return report;
}

class ReportFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "report_files_test." + std::to_string(::getpid());
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST(Hgrm, PercentilesRiseToOneAndTheTailSaysHowManyThereWere) {
  std::istringstream lines(format_hgrm(report_of_a_hundred().rows[0]));
  std::string line;
  std::getline(lines, line);
  EXPECT_THAT(line, HasSubstr("1/(1-Percentile)"));
  double value = 0, share = 0, last_value = 0, last_share = 0;
  uint64_t count = 0, rows = 0;
  while (std::getline(lines, line)) {
    if (line.empty()) continue;
    if (line[0] == '#') break;
    ASSERT_TRUE(std::istringstream(line) >> value >> share >> count) << line;
    EXPECT_GT(value, last_value);
    EXPECT_GT(share, last_share);
    EXPECT_NEAR(share, static_cast<double>(count) / 100, 1e-9);
    last_value = value;
    last_share = share;
    ++rows;
  }
  EXPECT_GE(rows, 90U);
  EXPECT_EQ(last_share, 1);
  EXPECT_NEAR(last_value, 100, 1);
  EXPECT_THAT(line, HasSubstr("#[Mean"));
}

TEST(Html, HoldsTheNumbersACurveForEachMeasuredRowAndNothingFromElsewhere) {
  const std::string page = format_html(report_of_a_hundred());
  EXPECT_THAT(page, HasSubstr("<td>remote fault, tcp</td><td>4096</td><td>100</td>"));
  EXPECT_THAT(page, HasSubstr("<polyline"));
  EXPECT_EQ(page.find("<polyline"), page.rfind("<polyline"));
  EXPECT_THAT(page, HasSubstr("width:50.0%"));  // the stage that takes half as long as the longest
  EXPECT_THAT(page, HasSubstr("&lt;x&amp;y&gt;"));
  for (const char* loads : {"http://", "https://", "<script", "<link", "<img", "@import"})
    EXPECT_THAT(page, Not(HasSubstr(loads)));
}

TEST_F(ReportFiles, OneHgrmFileForEachMeasuredRow) {
  ASSERT_TRUE(write_hgrm_files(report_of_a_hundred(), folder_));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/fault-remote-fault-tcp.hgrm"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/fault-never-measured.hgrm"));
}

TEST_F(ReportFiles, AFileThatCannotBeWrittenIsNamed) {
  const Status written = write_html_file(report_of_a_hundred(), folder_ + "/none/report.html");
  ASSERT_FALSE(written);
  EXPECT_THAT(written.error().context, HasSubstr(folder_ + "/none/report.html"));
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_FALSE(write_hgrm_files(report_of_a_hundred(), folder_ + "/file/below"));
}

}  // namespace
}  // namespace farpage::bench
