#include "pager/links/copy_gate.h"

#include <gtest/gtest.h>

#include "pager/options.h"

namespace farpage::pager {
namespace {

struct CopyGateTest : testing::Test {
  static std::unique_ptr<LeaseMap> make_map() {
    return std::move(*LeaseMap::create(1024, uint64_t{2} << 20));
  }
  const std::unique_ptr<LeaseMap> leases = make_map();
  const std::unique_ptr<LeaseMap> others = make_map();
  CopyGate gate;
};

TEST_F(CopyGateTest, KeepsEvictionAwayFromThePagesOfOneRegionOnly) {
  EXPECT_FALSE(gate.is_closed(*leases, PageIndex{0}));
  (void)gate.close(*leases, PageIndex{100}, 50);
  EXPECT_FALSE(gate.is_closed(*leases, PageIndex{99}));
  EXPECT_TRUE(gate.is_closed(*leases, PageIndex{100}));
  EXPECT_TRUE(gate.is_closed(*leases, PageIndex{149}));
  EXPECT_FALSE(gate.is_closed(*leases, PageIndex{150}));
  EXPECT_FALSE(gate.is_closed(*others, PageIndex{100}));
  gate.open();
  EXPECT_FALSE(gate.is_closed(*leases, PageIndex{100}));
}

TEST_F(CopyGateTest, IsQuietWhenTheBatchOfBeforeHasEndedItsWrites) {
  EXPECT_TRUE(gate.is_quiet(gate.close(*leases, PageIndex{0}, 1))) << "there was none";
  gate.begin_writing();
  const uint64_t closed_at = gate.close(*leases, PageIndex{1}, 1);
  EXPECT_FALSE(gate.is_quiet(closed_at));
  gate.end_writing();
  EXPECT_TRUE(gate.is_quiet(closed_at));
  gate.begin_writing();
  EXPECT_TRUE(gate.is_quiet(closed_at)) << "the next batch has seen the range";
}

TEST(RepairRate, IsAutoMaxOffOrASize) {
  EXPECT_FALSE(parse_repair_rate("auto")->bytes_per_second.has_value());
  EXPECT_TRUE(parse_repair_rate("auto")->enabled());
  EXPECT_FALSE(parse_repair_rate("off")->enabled());
  EXPECT_EQ(parse_repair_rate("max")->bytes_per_second, UINT64_MAX);
  EXPECT_EQ(parse_repair_rate("200M")->bytes_per_second, uint64_t{200} << 20);
  for (const char* text : {"", "0", "fast", "-1", "25%"})
    EXPECT_FALSE(parse_repair_rate(text).has_value()) << text;
}

}  // namespace
}  // namespace farpage::pager
