#include "cli/run_settings.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

#include <CLI/CLI.hpp>

#include "cli/program.h"
#include "cli/spill.h"

namespace farpage::cli {
namespace {

struct RunParse {
  RunSettings settings;
  ParsedCommandLine line;
};

std::unique_ptr<RunParse> parse_run(std::vector<std::string> arguments) {
  auto parse = std::make_unique<RunParse>();
  const std::vector<AddSubcommand> subcommands = {[&parse](CLI::App& root, Invocation& invocation) {
    Subcommand run(root, "run", "", {"farpage run"});
    add_options(run, parse->settings);
    run.on_run(invocation, [] { return kExitOk; });
  }};
  arguments.insert(arguments.begin(), "run");
  arguments.insert(arguments.end(), {"--", "true"});
  parse_command_line(arguments, subcommands, parse->line);
  choose_sizes(parse->settings, uint64_t{24} << 30);
  return parse;
}

// An option, and the change that it must make.
template <typename Options>
struct RunKnob {
  const char* option;
  const char* value;
  uint64_t (*read)(const Options&);
  uint64_t expected;
};

const RunKnob<rdma::VerbsOptions> kVerbsKnobs[] = {
    {"device", "mlx5_0", [](const rdma::VerbsOptions& o) { return uint64_t(o.device.size()); }, 6},
    {"device-port", "2", [](const rdma::VerbsOptions& o) { return uint64_t{o.device_port}; }, 2},
    {"gid-index", "3", [](const rdma::VerbsOptions& o) { return uint64_t(o.gid_index); }, 3},
    {"mtu", "2048", [](const rdma::VerbsOptions& o) { return uint64_t{o.mtu_bytes}; }, 2048},
    {"max-rd-atomic", "8", [](const rdma::VerbsOptions& o) { return uint64_t{o.max_rd_atomic}; },
     8},
    {"cq-depth", "256", [](const rdma::VerbsOptions& o) { return uint64_t{o.cq_depth}; }, 256},
    {"timeout", "12", [](const rdma::VerbsOptions& o) { return uint64_t{o.timeout_exponent}; }, 12},
    {"retry-cnt", "5", [](const rdma::VerbsOptions& o) { return uint64_t{o.retry_count}; }, 5},
};

const RunKnob<pager::PagerOptions> kPagerKnobs[] = {
    {"local", "128M", [](const pager::PagerOptions& o) { return o.local_bytes; }, 134217728},
    {"replicas", "2", [](const pager::PagerOptions& o) { return uint64_t{o.replicas}; }, 2},
    {"spread-by", "zone", [](const pager::PagerOptions& o) { return uint64_t{o.spread_by.size()}; },
     4},
    {"borrower", "batch", [](const pager::PagerOptions& o) { return uint64_t{o.borrower.size()}; },
     5},
    {"slab", "4M", [](const pager::PagerOptions& o) { return o.slab_bytes; }, 4194304},
    {"fault-deadline", "750ms",
     [](const pager::PagerOptions& o) { return uint64_t(o.fault_deadline.count()); }, 750},
    {"workers", "3", [](const pager::PagerOptions& o) { return uint64_t{o.workers}; }, 3},
    {"prefetch", "7", [](const pager::PagerOptions& o) { return uint64_t{o.prefetch_depth}; }, 7},
    {"repair-rate", "3M",
     [](const pager::PagerOptions& o) { return o.repair_rate.bytes_per_second.value_or(1); },
     3145728},
    {"checksums", "off", [](const pager::PagerOptions& o) { return uint64_t{o.checksums}; }, 0},
    {"scrub", "3M", [](const pager::PagerOptions& o) { return o.scrub_bytes_per_second; }, 3145728},
    {"on-full", "wait", [](const pager::PagerOptions& o) { return uint64_t(o.on_full); },
     uint64_t(pager::OnFull::kWait)},
    {"compressed", "20%",
     [](const pager::PagerOptions& o) {
       return uint64_t{o.compressed.enabled ? o.compressed.percent : 0};
     },
     20},
    {"high-water", "96",
     [](const pager::PagerOptions& o) { return uint64_t{o.high_water_percent}; }, 96},
    {"low-water", "80", [](const pager::PagerOptions& o) { return uint64_t{o.low_water_percent}; },
     80},
    {"transport", "tcp", [](const pager::PagerOptions& o) { return uint64_t(o.transports.size()); },
     1},
    {"poll-mode", "busy",
     [](const pager::PagerOptions& o) { return uint64_t(o.channel.poll_mode); },
     uint64_t(rdma::PollMode::kBusy)},
    {"operation-timeout", "2s",
     [](const pager::PagerOptions& o) { return uint64_t(o.channel.operation_timeout.count()); },
     2'000'000'000},
    {"max-send-wr", "16",
     [](const pager::PagerOptions& o) { return uint64_t{o.channel.operations_in_flight}; }, 16},
};

TEST(RunSettings, AnOperationTimeoutThatEveryOperationExceedsIsRefused) {
  const auto parse = parse_run({"--operation-timeout", "0"});
  const auto options = pager_options(parse->settings.pager);
  ASSERT_FALSE(options.has_value());
  EXPECT_NE(options.error().message().find("operation-timeout: at least 10 ms"), std::string::npos);
}

TEST(RunSettings, Defect6EveryPagerKnobReachesThePager) {
  for (const RunKnob<pager::PagerOptions>& knob : kPagerKnobs) {
    SCOPED_TRACE(knob.option);
    const auto before = pager_options(parse_run({})->settings.pager);
    ASSERT_TRUE(before.has_value());
    EXPECT_NE(knob.read(*before), knob.expected);  // otherwise the test proves nothing
    const auto parse = parse_run({fmt::format("--{}", knob.option), knob.value});
    ASSERT_EQ(parse->line.exit_status, kExitOk) << parse->line.problem;
    const auto after = pager_options(parse->settings.pager);
    ASSERT_TRUE(after.has_value()) << after.error().message();
    EXPECT_EQ(knob.read(*after), knob.expected);
  }
}

TEST(RunSettings, TheShareOfCompressedCopiesIsAPercentageAutoOrOff) {
  EXPECT_FALSE(pager::parse_compressed("off")->enabled);
  EXPECT_TRUE(pager::parse_compressed("auto")->adaptive);
  for (const char* text : {"1", "1%", "30%", "50%"}) {
    const auto option = pager::parse_compressed(text);
    ASSERT_TRUE(option.has_value()) << text;
    EXPECT_TRUE(option->enabled);
    EXPECT_FALSE(option->adaptive);
  }
  for (const char* text : {"", "0", "51%", "30 %", "30%%", "-1", "on", "30M"})
    EXPECT_FALSE(pager::parse_compressed(text).has_value()) << text;
}

TEST(RunSettings, Defect6EveryVerbsKnobReachesTheTransport) {
  for (const RunKnob<rdma::VerbsOptions>& knob : kVerbsKnobs) {
    SCOPED_TRACE(knob.option);
    EXPECT_NE(knob.read(verbs_options(parse_run({})->settings.pager)), knob.expected);
    const auto parse = parse_run({fmt::format("--{}", knob.option), knob.value});
    ASSERT_EQ(parse->line.exit_status, kExitOk) << parse->line.problem;
    EXPECT_EQ(knob.read(verbs_options(parse->settings.pager)), knob.expected);
  }
}

TEST(RunSettings, Defect6FlagsAndTheRestTakeEffect) {
  EXPECT_FALSE(pager_options(parse_run({"--no-pin"})->settings.pager)->pin_workers);
  EXPECT_TRUE(parse_run({"--stats"})->settings.stats);
  EXPECT_EQ(parse_run({"--stats-file", "f"})->settings.stats_file, "f");
  const auto recorded = pager_options(parse_run({"--record-trace", "f"})->settings);
  EXPECT_TRUE(recorded->record_touches);
  EXPECT_EQ(recorded->prefetch_depth, 0U);
  const auto plain = pager_options(parse_run({})->settings);
  EXPECT_FALSE(plain->record_touches);
  EXPECT_TRUE(plain->adaptive_water_marks);
  EXPECT_FALSE(pager_options(parse_run({"--high-water", "97"})->settings)->adaptive_water_marks);
  EXPECT_FALSE(pager_options(parse_run({"--low-water", "90"})->settings)->adaptive_water_marks);
  EXPECT_EQ(pager_options(parse_run({"--high-water", "50"})->settings)->low_water_percent, 47U);
  EXPECT_EQ(pager_options(parse_run({"--high-water", "2"})->settings)->low_water_percent, 1U);
  EXPECT_EQ(pager_options(parse_run({"--low-water", "99"})->settings)->high_water_percent, 99U);
  EXPECT_EQ(parse_run({"--local-each", "3G"})->settings.local_bytes(), uint64_t{3} << 30);
  EXPECT_EQ(parse_run({"--local-each", "3G"})->settings.budget_scope(), serve::BudgetScope::kEach);
  EXPECT_EQ(parse_run({"--local", "3G"})->settings.local_bytes(), uint64_t{3} << 30);
  EXPECT_EQ(parse_run({"--local", "3G"})->settings.budget_scope(), serve::BudgetScope::kGroup);
  EXPECT_EQ(parse_run({"--lend", "3G"})->settings.lend_bytes, uint64_t{3} << 30);
  EXPECT_EQ(parse_run({"--spill", "/a,size=3G"})->settings.spill, "/a,size=3G");
  EXPECT_EQ(parse_run({"--spill", "/a,size=3G"})->settings.pager.fault_deadline, Seconds(60));
  EXPECT_EQ(
      parse_run({"--spill", "/a,size=3G", "--fault-deadline", "1s"})->settings.pager.fault_deadline,
      Seconds(1));
  EXPECT_TRUE(parse_run({"--inject"})->settings.injects);
  EXPECT_EQ(parse_run({"--window", "8G"})->settings.window_bytes, uint64_t{8} << 30);
  EXPECT_EQ(parse_run({"--mmap-min", "64K"})->settings.mmap_min_bytes, uint64_t{65536});
  EXPECT_EQ(parse_run({"--coordinator", "http://a:1"})->settings.coordinator, "http://a:1");
  EXPECT_EQ(parse_run({"--token-file", "t"})->settings.token_file, "t");
  EXPECT_EQ(parse_run({"--pager", "/p"})->settings.host_pager, "/p");
  EXPECT_EQ(parse_run({"--allocator", "none"})->settings.allocator, "none");
  EXPECT_EQ(fork_mode(parse_run({})->settings, true), pager::ForkMode::kShare);
  EXPECT_EQ(fork_mode(parse_run({})->settings, false), pager::ForkMode::kRefuse);
  EXPECT_EQ(fork_mode(parse_run({"--fork", "refuse"})->settings, true), pager::ForkMode::kRefuse);
  EXPECT_EQ(fork_mode(parse_run({"--fork", "pull-in"})->settings, true), pager::ForkMode::kPullIn);
  EXPECT_EQ(fork_mode(parse_run({"--fork", "share"})->settings, true), pager::ForkMode::kShare);
  const auto refused = fork_mode(parse_run({"--fork", "share"})->settings, false);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("--fork=share"), std::string::npos);
  EXPECT_EQ(parse_run({})->settings.command, std::vector<std::string>{"true"});
}

TEST(RunSettings, SpillFileIsAFolderAndASize) {
  const auto good = parse_spill("/var/a,b,size=1.5G");
  ASSERT_TRUE(good.has_value());
  EXPECT_EQ(good->folder, "/var/a,b");
  EXPECT_EQ(good->bytes, uint64_t{1536} << 20);
  for (const char* text : {"", "/a", "/a,size=", "/a,size=0", "/a,size=x", ",size=1G", "/a,20G",
                           "size=1G", "/a,size=1G,more"})
    EXPECT_FALSE(parse_spill(text).has_value()) << text;
}

TEST(RunSettings, RoomIsComparedWithTheLeastLimitThatIsKnown) {
  EXPECT_EQ(limit_of_program(parse_run({"--window", "8G"})->settings), uint64_t{8} << 30);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_DATA, &before), 0);
  const rlimit limit{rlim_t{1} << 50, before.rlim_max};  // more than this process has
  ASSERT_EQ(::setrlimit(RLIMIT_DATA, &limit), 0);
  EXPECT_EQ(limit_of_program(parse_run({})->settings), uint64_t{1} << 50);
  EXPECT_EQ(limit_of_program(parse_run({"--window", "8G"})->settings), uint64_t{8} << 30);
  ASSERT_EQ(::setrlimit(RLIMIT_DATA, &before), 0);
  const std::optional<uint64_t> without = limit_of_program(parse_run({})->settings);
  EXPECT_EQ(without.has_value(), before.rlim_cur != RLIM_INFINITY);
  const Room room{.local_bytes = 8 << 20, .free_bytes = 16 << 20, .spill_bytes = 32 << 20};
  EXPECT_EQ(room_warning(room, 56 << 20), "");
  const std::string line = room_warning(room, (56 << 20) + 1);
  EXPECT_NE(line.find("there is room for 56M"), std::string::npos) << line;
  EXPECT_EQ(std::ranges::count(line, '\n'), 1);
}

TEST(RunSettings, SlabsOfAnEmbeddedNodeAreSmallWhereItLendsLittle) {
  const auto slab = [](std::vector<std::string> arguments) {
    return parse_run(std::move(arguments))->settings.pager.slab_bytes >> 20;
  };
  EXPECT_EQ(slab({"--lend", "64M"}), 2U);
  EXPECT_EQ(slab({"--lend", "1G"}), 8U);
  EXPECT_EQ(slab({"--lend", "1536M"}), 8U);  // a power of two
  EXPECT_EQ(slab({"--lend", "100G"}), 64U);
  EXPECT_EQ(slab({}), 64U);
  EXPECT_EQ(slab({"--lend", "1G", "--slab", "32M"}), 32U);
  EXPECT_EQ(slab({"--lend", "1G", "--coordinator", "http://a:1"}), 64U);  // that of `farpage node`
  EXPECT_EQ(parse_run({})->settings.lend_bytes, uint64_t{12} << 30);
}

TEST(RunSettings, DeadlineOutlastsWhatAFaultMayHaveToWaitFor) {
  const auto seconds = [](std::vector<std::string> arguments) {
    return parse_run(std::move(arguments))->settings.pager.fault_deadline / Seconds(1);
  };
  EXPECT_EQ(seconds({}), 5);
  EXPECT_EQ(seconds({"--coordinator", "http://a:1"}), 5);
  EXPECT_EQ(seconds({"--coordinator", "http://a:1,http://b:1"}), 20) << "an election";
  EXPECT_EQ(seconds({"--coordinator", "http://a:1,http://b:1", "--spill", "/tmp,size=1G"}), 60);
  EXPECT_EQ(seconds({"--coordinator", "http://a:1,http://b:1", "--fault-deadline", "3s"}), 3);
}

// The tables above must contain every option of the help text.
TEST(RunSettings, Defect6NoKnobIsWithoutATest) {
  ParsedCommandLine help;
  parse_command_line({"run", "--help"}, all_subcommands(), help);
  size_t variables = 0;
  for (size_t at = help.output.find("(Env:"); at != std::string::npos;
       at = help.output.find("(Env:", at + 1))
    ++variables;
  EXPECT_EQ(variables, std::size(kPagerKnobs) + std::size(kVerbsKnobs) + 15) << help.output;
}

TEST(RunSettings, AnOptionOfTheEngineIsRefusedBesideAPagerOfTheHost) {
  for (const char* option :
       {"--replicas=2", "--slab=2M", "--workers=1", "--no-pin", "--prefetch=0", "--compressed=auto",
        "--repair-rate=max", "--checksums=off", "--scrub=1M", "--transport=tcp", "--device=a",
        "--lend=1G", "--local-each=8M", "--record-trace=f", "--spill=/a,size=1G",
        "--on-full=wait"}) {
    const auto parse = parse_run({"--pager", "/p", option});
    EXPECT_EQ(parse->line.exit_status, kExitUsage) << option;
    EXPECT_NE(parse->line.problem.find("--pager"), std::string::npos) << parse->line.problem;
  }
  EXPECT_EQ(parse_run({"--pager", "/p", "--local", "8M", "--fork", "refuse"})->line.exit_status,
            kExitOk);
}

TEST(RunSettings, ImpossibleCombinationsNameTheKnob) {
  const auto problem_of = [](std::vector<std::string> arguments) {
    const auto parse = parse_run(std::move(arguments));
    if (parse->line.exit_status != kExitOk) return parse->line.problem;
    if (const Status status = check(parse->settings); !status) return status.error().message();
    const auto options = pager_options(parse->settings.pager);
    return options ? std::string() : options.error().message();
  };
  EXPECT_NE(problem_of({"--local", "8M", "--local-each", "8M"}).find("--local-each"),
            std::string::npos);
  EXPECT_NE(problem_of({"--local", "4K"}).find("local"), std::string::npos);
  EXPECT_NE(problem_of({"--repair-rate", "often"}).find("repair-rate"), std::string::npos);
  EXPECT_NE(problem_of({"--repair-rate", "0"}).find("off"), std::string::npos);
  EXPECT_NE(problem_of({"--scrub", "0"}).find("off"), std::string::npos);
  EXPECT_NE(problem_of({"--scrub", "4M", "--checksums", "off"}).find("--scrub"), std::string::npos);
  EXPECT_NE(problem_of({"--slab", "3M"}).find("slab"), std::string::npos);
  EXPECT_NE(problem_of({"--low-water", "99", "--high-water", "90"}).find("low-water"),
            std::string::npos);
  EXPECT_NE(problem_of({"--transport", "infiniband"}).find("infiniband"), std::string::npos);
  EXPECT_NE(problem_of({"--window", "1M"}).find("window"), std::string::npos);
  EXPECT_NE(problem_of({"--spill", "/tmp"}).find("FOLDER,size=SIZE"), std::string::npos);
  EXPECT_NE(problem_of({"--on-full", "panic"}).find("on-full"), std::string::npos);
  EXPECT_NE(problem_of({"--retry-cnt", "7"}).find("retry-cnt"), std::string::npos);
}

}  // namespace
}  // namespace farpage::cli
