// The shim in a test program (target_main.cc) with a real userfaultfd; the peer of the hand-over is
// SmallPager.
#include <gmock/gmock.h>

#include <cstring>
#include <random>
#include <sstream>

#include "small_pager.h"
#include "target_process.h"
#include "uffd/kernel_abi.h"

namespace farpage::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using uffd::handover::CommandKind;
using uffd::handover::Request;
using uffd::handover::RequestKind;

constexpr size_t kMiB = 1 << 20;

// "word address bytes", as a target prints it.
struct Told {
  std::string word;
  uint64_t address = 0;
  size_t bytes = 0;

  std::vector<uint64_t> pages() const {
    std::vector<uint64_t> all;
    for (uint64_t page = address; page < address + bytes; page += kPageBytes) {
      all.push_back(page);
    }
    return all;
  }
};

Told parse_told(const std::string& line) {
  Told told;
  std::istringstream(line) >> told.word >> told.address >> told.bytes;
  return told;
}

class Preload : public testing::Test {
 protected:
  void start_pager(const PagerOptions& options) { pager_ = std::make_unique<SmallPager>(options); }

  void start(const std::string& scenario, const std::string& argument = "",
             uint64_t window_bytes = uint64_t{4} << 30) {
    if (pager_ == nullptr) {
      start_pager({});
    }
    target_ = std::make_unique<TargetProcess>(
        std::vector<std::string>{FARPAGE_TARGET, scenario, argument},
        TargetProcess::Environment{{"FARPAGE_HANDOVER", pager_->socket_path()},
                                   {"FARPAGE_WINDOW_BYTES", std::to_string(window_bytes)},
                                   {"LD_PRELOAD", FARPAGE_SHIM}});
  }

  // Waits for the next address that the target prints.
  Told told() { return parse_told(target_->read_line()); }
  void go_on() { target_->write_line("go"); }

  TargetProcess::Outcome expect_success(int exit_status = 0) {
    TargetProcess::Outcome outcome = target_->finish();
    EXPECT_EQ(outcome.exit_status, exit_status) << "signal " << outcome.signal << "\n"
                                                << outcome.errors;
    return outcome;
  }

  template <typename Work>
  auto served(Work work) {
    return pager_->with_target(target_index_, work);
  }
  void evict(const Told& place) {
    served([&](ServedTarget& t) { return t.evict(place.pages()), 0; });
  }
  std::vector<Request> requests() {
    return served([](ServedTarget& t) { return t.requests(); });
  }
  void drop_and_compare();
  size_t targets() {
    return pager_->with_all([](auto& all) { return all.size(); });
  }

  // Runs to the end and checks that each address that the target prints is in the window. Returns
  // their number.
  int expect_far_places() {
    std::istringstream lines(expect_success().output);
    int places = 0;
    for (std::string line; std::getline(lines, line); ++places) {
      EXPECT_TRUE(served([&](ServedTarget& t) { return t.holds(parse_told(line).address); }))
          << line;
    }
    return places;
  }

  size_t target_index_ = 0;
  std::unique_ptr<SmallPager> pager_;
  std::unique_ptr<TargetProcess> target_;
};

TEST_F(Preload, HelloNamesTheProcessAndAnAlignedWindow) {
  start("drop");
  told();
  const auto hello = served([](ServedTarget& t) { return t.hello(); });
  EXPECT_EQ(hello.version, uffd::handover::kVersion);
  EXPECT_EQ(hello.pid, target_->pid());
  EXPECT_STREQ(hello.program, "farpage_preload_target");
  EXPECT_EQ(hello.window_address % (1 << 30), 0U);
  EXPECT_EQ(hello.window_bytes, uint64_t{4} << 30);
  EXPECT_EQ(hello.ring_bytes, sizeof(uffd::handover::AgentRing));
  EXPECT_NE(hello.features & UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0U);
  EXPECT_EQ(hello.features & UFFD_FEATURE_EVENT_REMOVE, 0U);
}

TEST_F(Preload, LargePrivateMemoryIsFarAndAllElseIsLocal) {
  start("places");
  const TargetProcess::Outcome outcome = expect_success();
  std::istringstream lines(outcome.output);
  std::string line;
  int places = 0;
  while (std::getline(lines, line)) {
    const Told place = parse_told(line);
    const bool far = served([&](ServedTarget& t) { return t.holds(place.address); });
    const bool wanted =
        place.word == "large" || place.word == "segment" || place.word == "reserved";
    EXPECT_EQ(far, wanted) << line;
    if (place.word == "segment") {
      EXPECT_EQ(place.address % (32 * kMiB), 0U);
    }
    ++places;
  }
  EXPECT_EQ(places, 6);
}

TEST_F(Preload, UnmappedPartsAreGoneAndComeBackAsZeros) {
  start("unmap");
  expect_success();
  const std::vector<Request> all = requests();
  ASSERT_EQ(all.size(), 2U);  // the middle, the whole; a free range causes no request
  EXPECT_EQ(all[0].kind, RequestKind::kDiscard);
  EXPECT_EQ(all[0].bytes, 32 * kPageBytes);
  EXPECT_EQ(all[1].bytes, 64 * kPageBytes);
}

TEST_F(Preload, UnmapAcrossTheEndOfTheWindowTakesBothSides) {
  start("unmap-across-the-end", "", 16 * kMiB);
  const TargetProcess::Outcome outcome = expect_success();
  const Told far = parse_told(outcome.output);
  const std::vector<Request> all = requests();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].address, far.address + far.bytes - 4 * kPageBytes);
  EXPECT_EQ(all[0].bytes, 4 * kPageBytes);
}

TEST_F(Preload, DontneedAndFreeGiveZerosAndAreToldToThePager) {
  start("dontneed");
  expect_success();
  EXPECT_EQ(served([](ServedTarget& t) { return t.requests_of(RequestKind::kDiscard); }), 3U);
}

TEST_F(Preload, OtherAdviceKeepsTheContentsAndBecomesHints) {
  start("advice");
  expect_success();
  EXPECT_EQ(served([](ServedTarget& t) { return t.requests_of(RequestKind::kDiscard); }), 0U);
  EXPECT_EQ(served([](ServedTarget& t) { return t.requests_of(RequestKind::kColdHint); }), 3U);
  EXPECT_EQ(served([](ServedTarget& t) { return t.requests_of(RequestKind::kWillNeedHint); }), 2U);
}

TEST_F(Preload, RemapGrowsShrinksAndMovesWithTheBytes) {
  start("remap");
  const Told moved = parse_told(expect_success().output);
  EXPECT_TRUE(served([&](ServedTarget& t) { return t.holds(moved.address); }));
}

TEST_F(Preload, RemapRefusesWhatTheKernelRefuses) {
  start("remap-refused");
  expect_success();
}

TEST_F(Preload, LockedMemoryIsPinnedAtThePagerUntilItIsUnlockedOrUnmapped) {
  start_pager({.pin_limit_pages = 512});
  start("lock");
  const auto pinned = [this] { return served([](ServedTarget& t) { return t.pinned_pages(); }); };
  told();
  EXPECT_EQ(pinned(), 256U);
  go_on();
  told();
  EXPECT_EQ(pinned(), 128U);
  go_on();
  EXPECT_EQ(told().word, "future");
  EXPECT_EQ(pinned(), 256U);
  go_on();
  told();
  EXPECT_EQ(pinned(), 0U);
  go_on();
  expect_success();
}

TEST_F(Preload, FixedMappingsOverFarMemoryReplaceItAndItBecomesFarAgain) {
  start("fixed", FARPAGE_SHIM);
  const Told page = told();
  evict(page);
  EXPECT_TRUE(served([&](ServedTarget& t) { return t.stored(page.address) != nullptr; }));
  go_on();
  expect_success();
  EXPECT_GE(served([](ServedTarget& t) { return t.refetches(); }), 1U);
}

TEST_F(Preload, MemoryIsFarWhereAProgramDoesWithoutItsHint) {
  start("casual-hints");
  EXPECT_EQ(expect_far_places(), 3);
}

TEST_F(Preload, AProgramThatGivesBackWhatIsNotAtItsHintGetsItsHints) {
  start("needed-hints");
  EXPECT_EQ(expect_far_places(), 3);
}

TEST_F(Preload, AFullWindowIsSaidOnceAndTheRestIsLocal) {
  start("full-window", "", 16 * kMiB);
  const TargetProcess::Outcome outcome = expect_success();
  std::istringstream lines(outcome.output);
  std::string line;
  std::getline(lines, line);
  EXPECT_TRUE(served([&](ServedTarget& t) { return t.holds(parse_told(line).address); }));
  std::getline(lines, line);
  EXPECT_FALSE(served([&](ServedTarget& t) { return t.holds(parse_told(line).address); }));
  const size_t said = outcome.errors.find("farpage: no room for");
  EXPECT_NE(said, std::string::npos);
  EXPECT_EQ(outcome.errors.find("farpage:", said + 1), std::string::npos);
}

// The scenario "drop": its pages are evicted and return changed, then are evicted and return
// locked.
void Preload::drop_and_compare() {
  Told place = told();
  evict(place);
  EXPECT_EQ(served([](ServedTarget& t) { return t.evictions(); }), place.pages().size());
  served([&](ServedTarget& t) {
    uint32_t value = 200;
    for (const uint64_t page : place.pages()) {
      PageBytes bytes(kPageBytes);
      std::memcpy(bytes.data(), &value, sizeof(value));
      t.put(page, bytes);
      ++value;
    }
    return 0;
  });
  go_on();
  place = told();
  evict(place);
  go_on();
  expect_success();
  EXPECT_EQ(served([](ServedTarget& t) { return t.refetches(); }), 2 * place.pages().size());
}

TEST_F(Preload, TheAgentDropsPagesLockedOnesToo) {
  start("drop");
  drop_and_compare();
}

TEST_F(Preload, TheAgentDropsPagesOnAKernelWithoutVectoredDrops) {
  start("old-kernel", "drop");
  target_index_ = 1;  // it registers again after exec
  drop_and_compare();
}

TEST_F(Preload, TheAgentSaysWhichCommandsFailed) {
  start("drop");
  const Told place = told();
  const auto results = served([&](ServedTarget& t) {
    t.evict({place.address, place.address + kPageBytes});
    return t.command(CommandKind::kDrop, {place.address, 0x1000, place.address + kPageBytes});
  });
  EXPECT_THAT(results, testing::ElementsAre(0, ENOMEM, 0));
  // The ring wraps around: more commands than it has entries, in pieces of odd size.
  for (int round = 0; round < 10; ++round) {
    const auto many = served([&](ServedTarget& t) {
      return t.command(CommandKind::kDrop, std::vector<uint64_t>(777, place.address));
    });
    EXPECT_EQ(many, std::vector<int>(777, 0));
  }
}

TEST_F(Preload, APoisonedPageIsABusErrorAtItsAddress) {
  start("poison");
  const Told lost = told();
  EXPECT_EQ(
      served([&](ServedTarget& t) { return t.command(CommandKind::kPoison, {lost.address}); }),
      std::vector<int>{0});
  go_on();
  expect_success();
}

TEST_F(Preload, PoisonWakesTheThreadThatWaitsForThePage) {
  start("poison");
  const Told lost = told();
  evict(lost);
  served([&](ServedTarget& t) { return t.hold(lost.address), 0; });
  go_on();
  while (served([](ServedTarget& t) { return t.held_faults(); }) == 0) std::this_thread::yield();
  EXPECT_EQ(
      served([&](ServedTarget& t) { return t.command(CommandKind::kPoison, {lost.address}); }),
      std::vector<int>{0});
  expect_success();
}

TEST_F(Preload, WithoutItsPagerACallFailsAndNeitherHangsNorLies) {
  start("pager-lost");
  told();
  served([](ServedTarget& t) { return t.hang_up(), 0; });
  go_on();
  const TargetProcess::Outcome outcome = expect_success();
  const size_t said = outcome.errors.find("farpage: the pager is gone");
  EXPECT_NE(said, std::string::npos) << outcome.errors;
  EXPECT_EQ(outcome.errors.find("farpage:", said + 1), std::string::npos);
}

TEST_F(Preload, AProgramWhosePagerHasDiedIsKilled) {
  start("spawn");
  told();
  served([](ServedTarget& t) { return t.end_lifeline(), 0; });
  EXPECT_EQ(target_->finish().signal, SIGKILL);
}

TEST_F(Preload, AProgramAfterExecIsNotKilledWithItsFormerMemory) {
  start("old-kernel", "spawn");
  target_index_ = 1;  // it registers again after exec
  evict(told());
  target_index_ = 0;
  served([](ServedTarget& t) { return t.end_lifeline(), 0; });
  go_on();
  expect_success();
}

TEST_F(Preload, ThreadsMapAndUnmapUnderEviction) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  start_pager({.budget_pages = 1500});
  start("stress", std::to_string(seed));
  expect_success();
  EXPECT_GT(served([](ServedTarget& t) { return t.evictions(); }), 0U);
}

TEST_F(Preload, TheProgramsOwnExitStatusIsKept) {
  start("exit-status", "37");
  expect_success(37);
}

TEST_F(Preload, ForkGivesTheChildAllOfItAndTheParentStaysPaged) {
  start("fork");
  const Told place = told();
  EXPECT_EQ(served([](ServedTarget& t) { return t.requests_of(RequestKind::kForkBegin); }), 3U);
  EXPECT_EQ(served([](ServedTarget& t) { return t.requests_of(RequestKind::kForkDone); }), 3U);
  evict(place);
  go_on();
  expect_success();
  EXPECT_EQ(served([](ServedTarget& t) { return t.refetches(); }), place.pages().size());
}

TEST_F(Preload, ForkIsRefusedWhilePagesAreAway) {
  start("fork-refused");
  evict(told());
  go_on();
  EXPECT_THAT(expect_success().errors, HasSubstr("farpage: fork refused"));
}

TEST_F(Preload, AForkBehindTheShimsBackGetsASignalNotZeros) {
  start("bare-fork");
  expect_success();
}

TEST_F(Preload, ExecRegistersAnew) {
  start("exec");
  expect_success(5);
  EXPECT_EQ(targets(), 2U);
}

TEST_F(Preload, SpawnWorksWhilePagesAreAway) {
  start("spawn");
  evict(told());
  go_on();
  expect_success();
  EXPECT_EQ(targets(), 3U);  // itself, /bin/true, sh
}

TEST_F(Preload, AProgramThatClosesAllDescriptorsStaysPaged) {
  start("close-all");
  expect_success();
}

TEST_F(Preload, AClosedPipeIsClosedAtOnce) {
  start("close-output");
  EXPECT_EQ(target_->read_line(), "");
  go_on();
  expect_success();
}

TEST_F(Preload, TheProgramEndsWithItsLastThread) {
  start("main-thread-exit");
  expect_success();
}

TEST_F(Preload, ForkAmongBusyThreads) {
  start("threads-fork");
  expect_success();
}

TEST_F(Preload, ForkptyAndDaemonForkLikeFork) {
  start("terminal");
  expect_success();
  start("daemon");
  EXPECT_EQ(expect_success().output, "/ well\n");
}

TEST_F(Preload, TheSmallestFarMappingIsConfigured) {
  start_pager({});
  TargetProcess target({FARPAGE_TARGET, "places"}, {{"FARPAGE_HANDOVER", pager_->socket_path()},
                                                    {"FARPAGE_MMAP_MIN_BYTES", "65536"},
                                                    {"LD_PRELOAD", FARPAGE_SHIM}});
  target.read_line();
  const Told small = parse_told(target.read_line());
  EXPECT_EQ(small.word, "small");
  EXPECT_TRUE(served([&](ServedTarget& t) { return t.holds(small.address); }));
  EXPECT_EQ(target.finish().exit_status, 0);
}

TEST_F(Preload, WithoutAPagerTheProgramDoesNotRun) {
  TargetProcess target({FARPAGE_TARGET, "places"},
                       {{"FARPAGE_HANDOVER", "/nowhere/handover"}, {"LD_PRELOAD", FARPAGE_SHIM}});
  const TargetProcess::Outcome outcome = target.finish();
  EXPECT_EQ(outcome.exit_status, 126);
  EXPECT_THAT(outcome.errors, HasSubstr("farpage: no pager answers at "
                                        "FARPAGE_HANDOVER=/nowhere/handover"));
  EXPECT_THAT(outcome.output, IsEmpty());
}

TEST_F(Preload, ARefusalIsShownAndTheProgramDoesNotRun) {
  start_pager({.welcome_status = 13, .welcome_reason = "another user"});
  start("places");
  EXPECT_THAT(expect_success(126).errors, HasSubstr("refused the hand-over: another user"));
}

TEST_F(Preload, APagerThatHangsUpIsShownAndTheProgramDoesNotRun) {
  start_pager({.answer_hello = false});
  start("places");
  EXPECT_THAT(expect_success(126).errors, HasSubstr("did not answer the hand-over"));
}

TEST_F(Preload, ABadNumberInTheEnvironmentIsNamed) {
  TargetProcess target({FARPAGE_TARGET, "places"}, {{"FARPAGE_HANDOVER", "/nowhere/handover"},
                                                    {"FARPAGE_WINDOW_BYTES", "64G"},
                                                    {"LD_PRELOAD", FARPAGE_SHIM}});
  const TargetProcess::Outcome outcome = target.finish();
  EXPECT_EQ(outcome.exit_status, 126);
  EXPECT_THAT(outcome.errors, HasSubstr("FARPAGE_WINDOW_BYTES=64G is not a decimal number"));
}

TEST_F(Preload, WithoutTheVariableNothingChanges) {
  for (const char* scenario : {"places", "advice", "fork", "spawn", "close-all"}) {
    TargetProcess target({FARPAGE_TARGET, scenario}, {{"LD_PRELOAD", FARPAGE_SHIM}});
    if (std::string(scenario) == "fork" || std::string(scenario) == "spawn") {
      target.read_line();
      target.write_line("go");
    }
    const TargetProcess::Outcome outcome = target.finish();
    EXPECT_EQ(outcome.exit_status, 0) << scenario << ": " << outcome.errors;
    EXPECT_THAT(outcome.errors, testing::Not(HasSubstr("farpage:")));
  }
}

}  // namespace
}  // namespace farpage::test
