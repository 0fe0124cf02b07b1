// farpage bench as a user runs it, on an embedded cluster: it moves the bytes that it measures and
// reports them. No test here depends on timing.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "unit/cli/child_process.h"

namespace farpage::cli {
namespace {

using nlohmann::json;

struct Outcome {
  int status = -1;
  std::string output;
  std::string log;
};

Outcome bench(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"--log-level", "warning", "bench"});
  ChildProcess child(std::move(arguments));
  const int status = child.wait();
  return {status, child.output(), child.log()};
}

Outcome replay(std::vector<std::string> arguments) {
  ChildProcess child(std::move(arguments), REPLAY_BINARY);
  const int status = child.wait();
  return {status, child.output(), child.log()};
}

// The report of a run that must succeed.
json report_of(std::vector<std::string> arguments) {
  for (const char* argument : {"--output", "json", "--slab", "2M"})
    arguments.emplace_back(argument);
  const Outcome outcome = bench(std::move(arguments));
  EXPECT_EQ(outcome.status, 0) << outcome.log;
  json report = json::parse(outcome.output, nullptr, false);
  EXPECT_TRUE(report.is_object()) << outcome.output;
  return report;
}

TEST(BenchControl, UnderTheLoadOfASimulatedClusterAllAgreeAndARestartKeepsIt) {
  const json report = report_of({"control", "--nodes", "20", "--regions", "40", "--leases", "400",
                                 "--watchers", "50", "--duration", "3s"});
  const json& counts = report["counts"];
  EXPECT_GE(counts["leases"], 400);
  EXPECT_EQ(counts["watchers_waiting"], 50);
  EXPECT_GT(counts["events_told"], 0);
  EXPECT_GT(counts["requests"], 100);
  EXPECT_LT(counts["coordinator_threads"], 40) << "none for each watcher";
  EXPECT_GT(report["figures"]["restart_s"], 0);
}

TEST(BenchControl, ASimulatedClusterIsRefusedForACoordinatorThatRuns) {
  const Outcome outcome = bench({"control", "--nodes", "2", "--coordinator", "http://127.0.0.1:1"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.log.find("--nodes"), std::string::npos) << outcome.log;
}

class BenchOver : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Wires, BenchOver, testing::Values("shm", "tcp"),
                         [](const auto& wire) { return std::string(wire.param); });

TEST_P(BenchOver, FaultsInSteadyStateFetchAndEvict) {
  const json report =
      report_of({"fault", "--transport", GetParam(), "--size", "16M", "--local", "4M",
                 "--iterations", "4000", "--access", "mixed", "--threads", "2"});
  const json& counts = report["counts"];
  EXPECT_EQ(counts["touches"], 4000);
  EXPECT_GT(counts["reads"], 0);
  EXPECT_EQ(counts["read_bytes"], counts["reads"].get<uint64_t>() * 4096);
  EXPECT_GT(counts["evicted_written"], 0);
  EXPECT_EQ(report["rows"][0]["iterations"], counts["faults"]);
  EXPECT_EQ(report["configuration"]["Transport"], GetParam());
}

TEST_P(BenchOver, FaultsWithoutEvictionFetchEachPageOnce) {
  const json report = report_of({"fault", "--transport", GetParam(), "--size", "16M", "--local",
                                 "8M", "--iterations", "1000", "--no-evict", "--prefetch", "0"});
  const json& counts = report["counts"];
  EXPECT_EQ(counts["faults"], 1000);
  EXPECT_EQ(counts["reads"], 1000);
  EXPECT_EQ(counts["evicted_clean"], 0);
  EXPECT_EQ(counts["evicted_written"], 0);
}

TEST_P(BenchOver, FaultsInTheTouchingThreadsHandlerFetchAndEvict) {
  const json report = report_of({"fault", "--transport", GetParam(), "--size", "16M", "--local",
                                 "4M", "--iterations", "4000", "--access", "mixed", "--threads",
                                 "2", "--faults", "handler"});
  const json& counts = report["counts"];
  EXPECT_EQ(counts["touches"], 4000);
  EXPECT_GT(counts["reads"], 0);
  EXPECT_GT(counts["evicted_written"], 0);
  EXPECT_EQ(report["rows"][0]["iterations"], counts["faults"]);
  EXPECT_NE(report["configuration"]["Faults"].get<std::string>().find("SIGBUS handler"),
            std::string::npos);
}

TEST_P(BenchOver, FaultsInTheHandlerWithoutEvictionFetchEachPageOnce) {
  const json report =
      report_of({"fault", "--transport", GetParam(), "--size", "16M", "--local", "8M",
                 "--iterations", "1000", "--no-evict", "--prefetch", "0", "--faults", "handler"});
  EXPECT_EQ(report["counts"]["faults"], 1000);
  EXPECT_EQ(report["counts"]["reads"], 1000);
}

TEST_P(BenchOver, SequentialFaultsArePrefetched) {
  const json report = report_of({"fault", "--transport", GetParam(), "--size", "16M", "--local",
                                 "4M", "--iterations", "4000", "--pattern", "sequential"});
  EXPECT_GT(report["counts"]["prefetched_pages"], 0);
}

TEST_P(BenchOver, ReadsAndWritesOfASlabAreChecked) {
  for (const char* operation : {"read", "write"}) {
    const json report = report_of({"read", "--transport", GetParam(), "--operation", operation,
                                   "--iterations", "500", "--depth", "4", "--bytes", "16K"});
    EXPECT_EQ(report["rows"][0]["iterations"], 500);
    EXPECT_EQ(report["counts"][std::string(GetParam()) + "_bytes_checked"], 500 * 16384);
  }
}

TEST_P(BenchOver, PerftestsShortFlagsMeasureForATime) {
  const json fault = report_of(
      {"fault", "-F", "--transport", GetParam(), "-s", "16M", "--local", "4M", "-D", "1"});
  EXPECT_GT(fault["counts"]["faults"], 0);
  EXPECT_GE(fault["counts"]["touches"], fault["counts"]["faults"]);
  const json read = report_of({"read", "--transport", GetParam(), "-s", "8K", "-D", "200ms"});
  EXPECT_GT(read["rows"][0]["iterations"], 0);
  EXPECT_EQ(read["counts"][std::string(GetParam()) + "_bytes_checked"],
            read["rows"][0]["iterations"].get<uint64_t>() * 8192);
}

TEST_P(BenchOver, OpenLoopChargesEachTouchFromItsOwnTime) {
  const json report = report_of({"fault", "--transport", GetParam(), "-s", "16M", "--local", "4M",
                                 "-n", "500", "--rate", "5000", "--threads", "2"});
  EXPECT_EQ(report["counts"]["touches"], 500);
  EXPECT_EQ(report["counts"]["touches_never_started"], 0);
  EXPECT_NE(report["configuration"]["Loop"].get<std::string>().find("intended start"),
            std::string::npos);
  const json* from_touch = nullptr;
  for (const json& row : report["rows"])
    if (row["name"] == "remote fault, from its touch") from_touch = &row;
  ASSERT_NE(from_touch, nullptr);
  EXPECT_EQ((*from_touch)["iterations"], report["rows"][0]["iterations"]);
  EXPECT_GE(report["rows"][0]["t_max"], (*from_touch)["t_max"]);
}

TEST_P(BenchOver, ScanBringsEveryPageBackOnce) {
  const json report = report_of(
      {"scan", "--transport", GetParam(), "-s", "16M", "--local", "4M", "--threads", "2"});
  const json& counts = report["counts"];
  EXPECT_EQ(counts["pages"], 4096);
  EXPECT_GT(counts["prefetched_pages"], 0);
  EXPECT_GE(counts["reads"].get<uint64_t>() + counts["prefetched_pages"].get<uint64_t>(), 4096U);
  EXPECT_EQ(report["rows"][0]["iterations"], 4096);
  EXPECT_EQ(report["throughputs"][0]["iterations"], 4096);
  EXPECT_GT(report["throughputs"][1]["iterations"], 0);
  EXPECT_NE(report["throughputs"][1]["name"].get<std::string>().find(GetParam()),
            std::string::npos);
  EXPECT_GT(report["figures"]["scan_to_raw_percent"], 0);
}

TEST_P(BenchOver, EvictionWritesEveryDirtyPageOfEveryRound) {
  const json report =
      report_of({"evict", "--transport", GetParam(), "-s", "4M", "--local", "8M", "-n", "3"});
  const json& counts = report["counts"];
  EXPECT_EQ(counts["rounds"], 3);
  EXPECT_EQ(counts["pages"], 3 * 1024);
  EXPECT_EQ(counts["dirtied_pages"], 4 * 1024);
  EXPECT_EQ(counts["evicted_written"], 4 * 1024);
  EXPECT_EQ(counts["write_bytes"], 4 * 1024 * 4096);
  EXPECT_EQ(counts["checked_pages"], 4 * 1024);
  EXPECT_GT(report["figures"]["evicted_to_raw_percent"], 0);
}

TEST_P(BenchOver, ConnectionsAreUsedBeforeTheyCount) {
  const json report = report_of({"connect", "--transport", GetParam(), "-n", "20"});
  const std::string name = GetParam();
  EXPECT_EQ(report["counts"][name + "_connections"], 20);
  EXPECT_EQ(report["counts"][name + "_bytes_checked"], 20 * 4096);
  EXPECT_GE(report["rows"][1]["t_avg"], report["rows"][0]["t_avg"]);
}

TEST_P(BenchOver, LeasesAreUsedAndGivenBackBySize) {
  const json report = report_of({"register", "--transport", GetParam(), "-n", "5", "-s", "2M,4M"});
  ASSERT_EQ(report["rows"].size(), 6U);
  for (const json& row : report["rows"]) EXPECT_EQ(row["iterations"], 5) << row;
  EXPECT_EQ(report["rows"][5]["bytes"], 4 << 20);
  EXPECT_EQ(report["counts"]["leases_4M"], 5);
  EXPECT_EQ(report["counts"]["bytes_checked_2M"], 5 * 2 * 4096);
}

TEST(Bench, ControlRequestsAreCountedByTheCoordinatorToo) {
  const json report = report_of({"control", "--transport", "tcp", "-n", "200", "--threads", "4"});
  EXPECT_EQ(report["counts"]["requests"], 200);
  EXPECT_GE(report["counts"]["counted_by_coordinator"], 200);
  ASSERT_EQ(report["rows"].size(), 5U);
  for (const json& row : report["rows"]) EXPECT_EQ(row["iterations"], 40) << row;
}

// Standard error is a pipe here, not a terminal.
TEST(Bench, ProgressIsForTerminalsAlone) {
  const Outcome outcome = bench({"read", "--transport", "shm", "--slab", "2M", "-D", "2"});
  EXPECT_EQ(outcome.status, 0) << outcome.log;
  EXPECT_EQ(outcome.log, "");
}

TEST(Bench, LadderHasEveryStepInOneTable) {
  const json report = report_of(
      {"ladder", "--transport", "shm,tcp", "--iterations", "500", "--local", "8M", "--pin"});
  std::vector<std::string> steps;
  for (const json& row : report["rows"]) {
    steps.push_back(row["name"]);
    EXPECT_EQ(row["iterations"], 500) << row;
  }
  EXPECT_EQ(steps,
            (std::vector<std::string>{
                "present page (the clock)", "anonymous zero fault", "local userfaultfd fault",
                "local userfaultfd fault, spinning", "local userfaultfd fault, SIGBUS", "READ, shm",
                "remote fault, shm", "remote fault, shm, SIGBUS", "TCP ping-pong, blocking",
                "TCP ping-pong, spinning", "READ, tcp", "remote fault, tcp",
                "remote fault, tcp, SIGBUS"}));
  for (const char* wire : {"shm", "shm_sigbus", "tcp", "tcp_sigbus"}) {
    const std::string name(wire);
    for (const char* figure : {"_floor_us", "_fault_us", "_overhead_us", "_overhead_percent"})
      EXPECT_TRUE(report["figures"].contains(name + figure)) << name << figure;
    EXPECT_GE(report["counts"][name + "_pages_fetched"], 500) << name;
    EXPECT_EQ(report["figures"].contains(name + "_above_ping_pong_percent"),
              name.starts_with("tcp"));
  }
}

// A benchmark that performs no transfer is rejected by its own self-check.
TEST(Defect13, BenchOfMemoryThatIsAllLocalPrintsNoNumber) {
  const Outcome outcome = bench({"fault", "--transport", "shm", "--size", "4M", "--local", "16M",
                                 "--slab", "2M", "--iterations", "100", "--output", "json"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.output, "");
  EXPECT_NE(outcome.log.find("no numbers for this run"), std::string::npos) << outcome.log;
}

TEST(Bench, ZipfFindsMoreOfItsPagesHereThanRandomDoes) {
  const auto present = [](const char* pattern) {
    const json report = report_of({"fault", "--transport", "shm", "--size", "16M", "--local", "4M",
                                   "--iterations", "8000", "--pattern", pattern});
    EXPECT_GT(report["counts"]["faults"], 0);
    return report["counts"]["touches"].get<uint64_t>() - report["counts"]["faults"].get<uint64_t>();
  };
  EXPECT_GT(present("zipf"), 2 * present("random"));
}

// The model in bench/replay/pager_model.h makes the pager's choices without its threads: the real
// evictor runs beside the touching thread, so a batch ends some touches later.
TEST(Bench, ReplayOfItsTouchesPredictsThePagersReads) {
  constexpr double kTolerance = 0.05;
  const std::string trace = testing::TempDir() + "replayed.trace";
  const json report =
      report_of({"fault", "--transport", "shm", "--size", "64M", "--local", "16M", "--iterations",
                 "60000", "--pattern", "zipf", "--prefetch", "0", "--record", trace});
  const Outcome outcome = replay({trace, "--local", "25", "--output", "json"});
  ASSERT_EQ(outcome.status, 0) << outcome.log;
  const json replayed = json::parse(outcome.output, nullptr, false);
  std::filesystem::remove(trace);
  ASSERT_TRUE(replayed.is_array()) << outcome.output;
  EXPECT_EQ(replayed[0]["accesses"], 60000);
  EXPECT_EQ(replayed[0]["local_pages"], 4096);
  const json& policies = replayed[0]["policies"];
  const auto found = std::ranges::find_if(
      policies, [](const json& policy) { return policy["policy"] == "pager"; });
  ASSERT_NE(found, policies.end());
  const json& pager = *found;
  const auto counted = report["counts"]["reads"].get<double>();
  EXPECT_NEAR(pager["reads"].get<double>() / counted, 1, kTolerance)
      << pager << " and the pager counted " << counted;
}

TEST(Bench, ReplayExplainsItselfAndRefusesWrongOptions) {
  const Outcome help = replay({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_NE(help.output.find("--local"), std::string::npos);
  const std::string trace = testing::TempDir() + "no_trace";
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{},
                                             {"/nonexistent/trace"},
                                             {trace, "--local", "0"},
                                             {trace, "--local", "101"},
                                             {trace, "--output", "xml"}}) {
    const Outcome outcome = replay(wrong);
    EXPECT_EQ(outcome.status, 2) << outcome.log;
    EXPECT_EQ(outcome.output, "");
    EXPECT_NE(outcome.log, "");
  }
}

TEST(Bench, WritesTheFilesThatItIsAskedFor) {
  const std::filesystem::path folder = testing::TempDir() + "bench_files";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  (void)report_of({"fault", "--transport", "shm", "--size", "16M", "--local", "4M", "--iterations",
                   "500", "--pattern", "strided", "--html", folder / "page.html", "--hgrm",
                   folder});
  EXPECT_GT(std::filesystem::file_size(folder / "page.html"), 2000U);
  EXPECT_GT(std::filesystem::file_size(folder / "fault-remote-fault.hgrm"), 100U);
  std::filesystem::remove_all(folder);
}

TEST(Bench, WrongOptionsAreRefusedBeforeAnythingIsStarted) {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"fault", "--pattern", "spiral"},
                                             {"fault", "--threads", "0"},
                                             {"fault", "--no-evict", "--iterations", "1000000"},
                                             {"fault", "-n", "5", "-D", "5"},
                                             {"fault", "-D", "5", "--no-evict"},
                                             {"fault", "-D", "25h"},
                                             {"fault", "--record", "f", "--threads", "2"},
                                             {"read", "--bytes", "5000"},
                                             {"read", "--depth", "65"},
                                             {"ladder", "--local", "2M"},
                                             {"scan", "-s", "1K"},
                                             {"evict", "-s", "64M", "--local", "64M"},
                                             {"register", "-s", "3M"},
                                             {}}) {
    const Outcome outcome = bench(wrong);
    EXPECT_EQ(outcome.status, 2) << outcome.log;
    EXPECT_EQ(outcome.output, "");
  }
}

}  // namespace
}  // namespace farpage::cli
