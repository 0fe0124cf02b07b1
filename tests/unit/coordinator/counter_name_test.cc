#include "coordinator/counter_name.h"

#include <gtest/gtest.h>

namespace farpage::coordinator {
namespace {

TEST(CounterName, TakesNameAndLabelsApart) {
  EXPECT_EQ(parse_counter_name("farpage_reads_total")->family, "farpage_reads_total");
  EXPECT_EQ(parse_counter_name("reads_total")->family, "farpage_reads_total");
  const auto name = parse_counter_name(R"(farpage_faults_total{kind="remote",le="+0.5"})");
  ASSERT_TRUE(name.has_value());
  EXPECT_EQ(name->family, "farpage_faults_total");
  ASSERT_EQ(name->labels.size(), 2U);
  EXPECT_EQ(name->labels[1], (std::pair<std::string, std::string>("le", "+0.5")));
}

TEST(CounterName, TellsThePartsOfAHistogramFromOtherCounters) {
  const auto part_of = [](const char* text) {
    CounterName name = *parse_counter_name(text);
    const HistogramPart part = take_histogram_part(name);
    return std::pair(part, name.family);
  };
  const std::string family = "farpage_fault_seconds";
  EXPECT_EQ(part_of(R"(fault_seconds_bucket{le="0.001"})"),
            std::pair(HistogramPart::kBucket, family));
  EXPECT_EQ(part_of("fault_seconds_count"), std::pair(HistogramPart::kCount, family));
  EXPECT_EQ(part_of("fault_seconds_sum_ns"), std::pair(HistogramPart::kSum, family));
  for (const char* other : {"fault_seconds_bucket", R"(fault_seconds_bucket{le="x"})",
                            R"(fault_bucket{le="1"})", "pages_count", "fault_seconds"})
    EXPECT_EQ(part_of(other).first, HistogramPart::kNone) << other;
}

TEST(CounterName, RefusesWhatWouldBreakTheTextFormatOrTheCoordinatorsOwnSeries) {
  for (const char* text : {"",
                           "Faults",
                           "a b",
                           "a{",
                           "a{}",
                           "a{b}",
                           "a{b=c}",
                           R"(a{b="c")",
                           R"(a{b="c"}x)",
                           R"(a{b="c",})",
                           R"(a{b="c\"d"})",
                           R"(a{b="c d"})",
                           R"(a{B="c"})",
                           "a\nb",
                           "1a",
                           R"(a{node="x"})",
                           R"(a{region="x"})",
                           R"(a{name="x"})",
                           R"(a{b="1",b="2"})",
                           "farpage_coordinator_nodes",
                           "coordinator_nodes",
                           R"(a{b="1",c="1",d="1",e="1",f="1"})"})
    EXPECT_FALSE(parse_counter_name(text).has_value()) << text;
}

}  // namespace
}  // namespace farpage::coordinator
