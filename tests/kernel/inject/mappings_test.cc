// The memory of a running program that can become far, and when that may have changed.
#include "inject/mappings.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <string>

#include "base/strong.h"
#include "inject/mapping_watch.h"
#include "taken_program.h"

namespace farpage::test {
namespace {

using inject::AddressRange;
using inject::EligibleMappings;
using inject::MappingWatch;
using inject::ProcessFiles;

constexpr inject::MappingOptions kAtOnce{.max_share = 1};

class InjectMappings : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = why_no_injection()) GTEST_SKIP() << *why;
  }

  ProcessFiles files() {
    Result<ProcessFiles> opened = ProcessFiles::open(program_.pid());
    EXPECT_TRUE(opened.has_value());
    return std::move(*opened);
  }
  static std::vector<AddressRange> look(EligibleMappings& mappings) {
    auto ranges = mappings.look();
    EXPECT_TRUE(ranges.has_value()) << ranges.error().message();
    return *ranges;
  }
  // Are all of these bytes in eligible mappings?
  static bool covers(const std::vector<AddressRange>& ranges, uint64_t begin, uint64_t bytes) {
    uint64_t at = begin;
    for (const AddressRange& range : ranges)
      if (range.begin <= at && at < range.end) at = range.end;
    return at >= begin + bytes;
  }
  static bool touches(const std::vector<AddressRange>& ranges, uint64_t begin, uint64_t bytes) {
    return std::ranges::any_of(ranges, [&](const AddressRange& range) {
      return range.begin < begin + bytes && begin < range.end;
    });
  }
  uint64_t map(const std::string& kind, uint64_t pages) {
    return program_.ask_number(kind + " " + std::to_string(pages));
  }
  std::string ask(const std::string& command, uint64_t address, uint64_t pages) {
    return program_.ask(command + " " + std::to_string(address) + " " + std::to_string(pages));
  }

  TakenProgram program_;
};

TEST_F(InjectMappings, HaveThePrivateAnonymousWritableOnes) {
  const ProcessFiles process = files();
  EligibleMappings mappings(process, {}, kAtOnce);
  const uint64_t plain = map("map", 50);
  EXPECT_TRUE(covers(look(mappings), plain, 50 * kPageBytes));
  for (const char* kind : {"map_shared", "map_executable", "map_file", "map_wiped"}) {
    const uint64_t other = map(kind, 20);
    EXPECT_FALSE(touches(look(mappings), other, 20 * kPageBytes)) << kind;
  }
  for (const AddressRange& range : look(mappings)) {
    EXPECT_LT(range.begin, range.end);
    EXPECT_EQ(range.begin % kPageBytes, 0U);
  }
}

TEST_F(InjectMappings, HaveTheHeapButNoStack) {
  const ProcessFiles process = files();
  EligibleMappings mappings(process, {}, kAtOnce);
  const uint64_t variable = program_.ask_number("stack_of_thread");
  const std::vector<AddressRange> ranges = look(mappings);
  EXPECT_FALSE(touches(ranges, variable, 1));
  EXPECT_TRUE(covers(ranges, program_.ask_number("heap"), 1));
  EXPECT_FALSE(touches(ranges, program_.ask_number("stack"), 1));
}

TEST_F(InjectMappings, LoseWhatIsLockedReadOnlyOrUnmapped) {
  const ProcessFiles process = files();
  EligibleMappings mappings(process, {}, kAtOnce);
  const uint64_t address = map("map", 100);
  ASSERT_TRUE(covers(look(mappings), address, 100 * kPageBytes));
  ASSERT_EQ(ask("lock", address, 100), "0");  // all of the mapping: maps is as before
  EXPECT_FALSE(touches(look(mappings), address, 100 * kPageBytes));
  ASSERT_EQ(ask("unlock", address, 100), "0");
  ASSERT_TRUE(covers(look(mappings), address, 100 * kPageBytes));
  ASSERT_EQ(ask("protect", address + 10 * kPageBytes, 10), "0");
  const auto cut = look(mappings);
  EXPECT_TRUE(covers(cut, address, 10 * kPageBytes));
  EXPECT_FALSE(touches(cut, address + 10 * kPageBytes, 10 * kPageBytes));
  EXPECT_TRUE(covers(cut, address + 20 * kPageBytes, 80 * kPageBytes));
  ASSERT_EQ(ask("unmap", address, 100), "0");
  EXPECT_FALSE(touches(look(mappings), address, 100 * kPageBytes));
}

TEST_F(InjectMappings, StayWhenTheyGrowAndAreLeftOutWhenTheyAreSmall) {
  const ProcessFiles process = files();
  EligibleMappings mappings(process, {}, {.min_bytes = 512 << 10, .max_share = 1});
  const uint64_t large = map("map", 200);
  ASSERT_TRUE(covers(look(mappings), large, 200 * kPageBytes));
  ASSERT_EQ(program_.ask("grow_heap"), "0");
  const uint64_t heap = program_.ask_number("heap");
  EXPECT_TRUE(covers(look(mappings), heap, 1));
  ASSERT_EQ(program_.ask("grow_heap"), "0");
  EXPECT_TRUE(covers(look(mappings), heap, 1));
  for (const AddressRange& range : look(mappings)) EXPECT_GE(range.bytes(), 512U << 10);
}

TEST_F(InjectMappings, AreJudgedLaterWhereThatTakesTooLong) {
  const ProcessFiles process = files();
  EligibleMappings mappings(process, {}, {.max_share = 1e-6});
  look(mappings);
  EXPECT_FALSE(mappings.unjudged_until());
  const uint64_t address = map("map", 50);
  EXPECT_FALSE(touches(look(mappings), address, 50 * kPageBytes));
  ASSERT_TRUE(mappings.unjudged_until());
  EXPECT_GT(*mappings.unjudged_until(), SteadyClock::read());
}

TEST_F(InjectMappings, LeaveOutWhatIsTheAgents) {
  const inject::InjectedAgent& agent = program_.inject();
  const ProcessFiles process = files();
  const AddressRange own[] = {{agent.staging_address, agent.staging_address + agent.staging_bytes},
                              {agent.ring_address, agent.ring_address + agent.ring_bytes},
                              {agent.code_address, agent.code_address + agent.code_bytes}};
  EligibleMappings mappings(process, own, kAtOnce);
  const auto ranges = look(mappings);
  EXPECT_FALSE(ranges.empty());
  for (const AddressRange& mine : own) EXPECT_FALSE(touches(ranges, mine.begin, mine.bytes()));
  program_.withdraw();
}

TEST_F(InjectMappings, OfAProcessThatHasEndedAreAnError) {
  const ProcessFiles process = files();
  EligibleMappings mappings(process, {}, kAtOnce);
  look(mappings);
  program_.process().finish();
  EXPECT_FALSE(mappings.look().has_value());
}

TEST_F(InjectMappings, AreAnnouncedWhenTheProgramHasNewOnes) {
  ManualClock clock;
  MappingWatch watch(clock);
  ASSERT_TRUE(watch.announces()) << "root may watch all processes";
  watch.watch(program_.pid());
  EXPECT_TRUE(watch.may_have_changed(program_.pid()));  // everything is new
  program_.ask("pid");
  while (watch.may_have_changed(program_.pid())) {  // what it did before
  }
  const uint64_t address = map("map", 10);
  pollfd announced{watch.descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&announced, 1, 10'000), 1);
  EXPECT_TRUE(watch.may_have_changed(program_.pid()));
  EXPECT_FALSE(watch.may_have_changed(program_.pid()));
  ASSERT_EQ(ask("protect", address, 5), "0");
  EXPECT_TRUE(watch.may_have_changed(program_.pid()));
  ASSERT_EQ(program_.ask("grow_heap"), "0");
  EXPECT_TRUE(watch.may_have_changed(program_.pid()));
  // The kernel does not tell of this one.
  ASSERT_EQ(ask("grow", address + 5 * kPageBytes, 5), "0");
  clock.advance(MappingWatch::kSlowScanInterval);
  EXPECT_TRUE(watch.may_have_changed(program_.pid()));
  EXPECT_FALSE(watch.may_have_changed(program_.pid()));
  watch.forget(program_.pid());
  map("map", 10);
  EXPECT_FALSE(watch.may_have_changed(program_.pid()));
}

TEST_F(InjectMappings, ManyNewOnesAreNotLost) {
  ManualClock clock;
  MappingWatch watch(clock);
  watch.watch(program_.pid());
  TakenProgram other;
  watch.watch(other.pid());
  ASSERT_TRUE(watch.may_have_changed(program_.pid()));
  ASSERT_TRUE(watch.may_have_changed(other.pid()));
  map("map", 1);
  ASSERT_EQ(other.ask("map_often 5000"), "0");  // more than the rings hold
  EXPECT_TRUE(watch.may_have_changed(program_.pid()));
  EXPECT_TRUE(watch.may_have_changed(other.pid()));
}

TEST(MappingWatch, WithoutAnnouncementsAllMayHaveChangedEverySecond) {
  ManualClock clock;
  MappingWatch watch(clock, false);
  EXPECT_FALSE(watch.announces());
  EXPECT_EQ(watch.descriptor(), -1);
  watch.watch(1);
  EXPECT_TRUE(watch.may_have_changed(1));
  EXPECT_FALSE(watch.may_have_changed(1));
  clock.advance(MappingWatch::kScanInterval - Nanoseconds(1));
  EXPECT_FALSE(watch.may_have_changed(1));
  clock.advance(Nanoseconds(1));
  EXPECT_TRUE(watch.may_have_changed(1));
  EXPECT_FALSE(watch.may_have_changed(1));
  EXPECT_FALSE(watch.may_have_changed(2));
}

}  // namespace
}  // namespace farpage::test
