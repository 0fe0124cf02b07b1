#include "cli/coordinator_settings.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>

#include "cli/program.h"

namespace farpage::cli {
namespace {

// The result of a command line; an error is returned as its text.
std::string effect(const std::vector<std::string>& arguments,
                   std::string (*see)(const coordinator::ServiceOptions&)) {
  CoordinatorSettings settings;
  ParsedCommandLine line;
  const std::vector<AddSubcommand> subcommands = {[&](CLI::App& root, Invocation& invocation) {
    Subcommand coordinator(root, "coordinator", "", {"farpage coordinator"});
    add_options(coordinator, settings);
    coordinator.on_run(invocation, [] { return kExitOk; });
  }};
  parse_command_line(arguments, subcommands, line);
  if (!line.invocation.run) return line.problem;
  const auto options = service_options(settings, "token");
  return options ? see(*options) : options.error().context;
}

TEST(CoordinatorSettings, Defect6EveryKnobReachesTheService) {
  struct Knob {
    const char* option;
    const char* variable;
    const char* value;
    std::string (*see)(const coordinator::ServiceOptions&);
    const char* sees;
    const char* sees_default;
  };
  using Options = coordinator::ServiceOptions;
  for (const Knob& knob :
       {Knob{"--listen", "FARPAGE_COORDINATOR_LISTEN", "[::1]:9",
             [](const Options& o) { return fmt::format("{} {}", o.host, o.port); }, "::1 9",
             "127.0.0.1 7070"},
        {"--insecure", "FARPAGE_COORDINATOR_INSECURE", "true",
         [](const Options& o) { return std::to_string(o.insecure); }, "1", "0"},
        {"--node-ttl", "FARPAGE_COORDINATOR_NODE_TTL", "750ms",
         [](const Options& o) { return std::to_string(o.state.node_time_to_live.count()); },
         "750000000", "5000000000"},
        {"--region-ttl", "FARPAGE_COORDINATOR_REGION_TTL", "2m",
         [](const Options& o) { return std::to_string(o.state.region_time_to_live.count()); },
         "120000000000", "60000000000"},
        {"--request-threads", "FARPAGE_COORDINATOR_REQUEST_THREADS", "3",
         [](const Options& o) { return std::to_string(o.request_threads); }, "3", "16"},
        {"--max-long-polls", "FARPAGE_COORDINATOR_MAX_LONG_POLLS", "5",
         [](const Options& o) { return std::to_string(o.max_long_polls); }, "5", "4096"}}) {
    SCOPED_TRACE(knob.option);
    EXPECT_EQ(effect({"coordinator"}, knob.see), knob.sees_default);
    EXPECT_EQ(effect({"coordinator", fmt::format("{}={}", knob.option, knob.value)}, knob.see),
              knob.sees);
    ::setenv(knob.variable, knob.value, 1);
    EXPECT_EQ(effect({"coordinator"}, knob.see), knob.sees);
    ::unsetenv(knob.variable);
  }
}

TEST(CoordinatorSettings, WrongValuesNameTheFlag) {
  const auto nothing = [](const coordinator::ServiceOptions&) { return std::string("accepted"); };
  EXPECT_NE(effect({"coordinator", "--listen", "x"}, nothing).find("--listen"), std::string::npos);
  EXPECT_NE(effect({"coordinator", "--node-ttl", "0"}, nothing).find("--node-ttl"),
            std::string::npos);
  EXPECT_NE(effect({"coordinator", "--request-threads", "0"}, nothing).find("--request-threads"),
            std::string::npos);
}

TEST(CoordinatorSettings, StoreIsMemoryOrSqlite) {
  EXPECT_EQ((*open_store("memory"))->kind(), "memory");
  const std::string path = testing::TempDir() + fmt::format("farpage-store-{}.db", ::getpid());
  const auto sqlite = open_store("sqlite:" + path);
  ASSERT_TRUE(sqlite.has_value()) << sqlite.error().message();
  EXPECT_EQ((*sqlite)->kind(), "sqlite");
  for (const char* suffix : {"", "-wal", "-shm"}) ::unlink((path + suffix).c_str());
  for (const char* text : {"", "sqlite", "sqlite:", "etcd:x", "Memory"})
    EXPECT_EQ(open_store(text).error().code, ErrorCode::kInvalid) << text;
}

TEST(CoordinatorSettings, EtcdNeedsAnAddressThatOthersReach) {
  EXPECT_EQ(etcd_of("etcd:http://a:1,http://b:1"), "http://a:1,http://b:1");
  EXPECT_EQ(etcd_of("sqlite:etcd:"), std::nullopt);
  EXPECT_TRUE(open_etcd("http://a:1,http://b:1").has_value());
  for (const char* urls : {"", "a:1", "http://a:1,"}) {
    const auto refused = open_etcd(urls);
    ASSERT_FALSE(refused.has_value()) << urls;
    EXPECT_EQ(refused.error().context.find("--store etcd:"), 0U) << refused.error().context;
  }
  CoordinatorSettings settings;
  settings.store = "etcd:http://a:1";
  settings.listen = "0.0.0.0:7070";
  settings.insecure = true;
  EXPECT_NE(service_options(settings, "").error().context.find("--advertise"), std::string::npos);
  settings.advertise = "10.0.0.1:7070";
  EXPECT_NE(service_options(settings, "").error().context.find("--advertise"), std::string::npos);
  settings.advertise = "http://10.0.0.1:7070";
  EXPECT_EQ(service_options(settings, "")->advertise, "http://10.0.0.1:7070");
  settings.store = "memory";
  EXPECT_NE(service_options(settings, "").error().context.find("--advertise"), std::string::npos);
}

TEST(CoordinatorSettings, QuotasAndTheLabelOfTheSpreadAreChecked) {
  CoordinatorSettings settings;
  settings.spread_by = "zone";
  settings.quotas = {"batch=64G", "web=1G"};
  const auto options = service_options(settings, "");
  ASSERT_TRUE(options.has_value()) << options.error().message();
  EXPECT_EQ(options->state.spread_by, "zone");
  EXPECT_EQ(options->state.quotas.at("batch"), uint64_t{64} << 30);
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"batch"}, {"batch="}, {"=1G"}, {"a b=1G"}, {"a=1G", "a=2G"}}) {
    settings.quotas = wrong;
    const auto refused = service_options(settings, "");
    ASSERT_FALSE(refused.has_value()) << wrong[0];
    EXPECT_EQ(refused.error().context.find("--quota: '"), 0U) << refused.error().context;
  }
  settings.quotas.clear();
  settings.spread_by = "a b";
  EXPECT_FALSE(service_options(settings, "").has_value());
}

TEST(CoordinatorSettings, WhatBorrowersLeaveFreeIsChecked) {
  CoordinatorSettings settings;
  settings.keeps_free = {"batch=25%", "web=0", "*=1G"};
  const auto options = service_options(settings, "");
  ASSERT_TRUE(options.has_value()) << options.error().message();
  EXPECT_EQ(options->state.keeps_free.at("batch").percent, 25U);
  EXPECT_EQ(options->state.keeps_free.at("web").bytes, 0U);
  EXPECT_EQ(options->state.keeps_free.at("*").bytes, uint64_t{1} << 30);
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"batch"},
                                                {"batch="},
                                                {"batch=%"},
                                                {"batch=0%"},
                                                {"batch=100%"},
                                                {"batch=5.5%"},
                                                {"batch=-1%"},
                                                {"=1G"},
                                                {"a b=1G"},
                                                {"*x=1G"},
                                                {"a=1G", "a=2%"}}) {
    settings.keeps_free = wrong;
    const auto refused = service_options(settings, "");
    ASSERT_FALSE(refused.has_value()) << wrong[0];
    EXPECT_EQ(refused.error().context.find("--keep-free: '"), 0U) << refused.error().context;
  }
}

}  // namespace
}  // namespace farpage::cli
