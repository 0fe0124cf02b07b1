#include "cli/program.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cli/node_settings.h"
#include "cli/secrets.h"

namespace farpage::cli {
namespace {

using Words = std::vector<std::string>;

// A directory and environment variables, removed after the test.
class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    std::string pattern = testing::TempDir() + "farpage-cli-XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~ProgramTest() override {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
    std::filesystem::remove_all(directory_);
  }

  void set_environment(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    set_.push_back(name);
  }
  std::string write_file(const std::string& name, const std::string& text, mode_t mode = 0600) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }

  // Parses `farpage node ...` into settings without running it.
  struct NodeParse {
    NodeSettings settings;
    ParsedCommandLine line;
  };
  static std::unique_ptr<NodeParse> parse_node(std::vector<std::string> arguments) {
    auto parse = std::make_unique<NodeParse>();
    const std::vector<AddSubcommand> subcommands = {
        [&parse](CLI::App& root, Invocation& invocation) {
          Subcommand node(root, "node", "", {"farpage node"});
          add_options(node, parse->settings);
          node.on_run(invocation, [] { return kExitOk; });
        },
        [](CLI::App& root, Invocation& invocation) {
          static std::string url;
          Subcommand other(root, "other", "", {"farpage other"});
          other.text("--url", url, "");
          other.on_run(invocation, [] { return kExitOk; });
        }};
    parse_command_line(arguments, subcommands, parse->line);
    return parse;
  }

  static ParsedCommandLine parse(const std::vector<std::string>& arguments) {
    ParsedCommandLine parsed;
    parse_command_line(arguments, all_subcommands(), parsed);
    return parsed;
  }

  std::string directory_;
  std::vector<std::string> set_;
};

// One option: two values that differ from each other and from the default, and how to read the
// value in effect.
struct Knob {
  const char* option;  // without the dashes
  const char* variable;
  const char* first;
  const char* second;
  std::string (*see)(const NodeSettings&);
  const char* sees_first;
  const char* sees_second;
};

const Knob kNodeKnobs[] = {
    {"label", "FARPAGE_NODE_LABEL", "zone=a", "zone=b",
     [](const NodeSettings& s) { return s.labels.empty() ? "" : s.labels[0]; }, "zone=a", "zone=b"},
    {"state-dir", "FARPAGE_NODE_STATE_DIR", "/a", "/b",
     [](const NodeSettings& s) { return s.state_directory; }, "/a", "/b"},
    {"coordinator", "FARPAGE_COORDINATOR", "http://a:1", "http://b:2",
     [](const NodeSettings& s) { return s.coordinator; }, "http://a:1", "http://b:2"},
    {"token-file", "FARPAGE_TOKEN_FILE", "t1", "t2",
     [](const NodeSettings& s) { return s.token_file; }, "t1", "t2"},
    {"lend", "FARPAGE_NODE_LEND", "2G", "3G",
     [](const NodeSettings& s) { return std::to_string(s.lend_bytes.value_or(0)); }, "2147483648",
     "3221225472"},
    {"spill", "FARPAGE_NODE_SPILL", "/a,size=1G", "/b,size=2G",
     [](const NodeSettings& s) { return s.spill; }, "/a,size=1G", "/b,size=2G"},
    {"slab", "FARPAGE_NODE_SLAB", "2M", "1G",
     [](const NodeSettings& s) { return std::to_string(s.slab_bytes); }, "2097152", "1073741824"},
    {"name", "FARPAGE_NODE_NAME", "n1", "n2", [](const NodeSettings& s) { return s.name; }, "n1",
     "n2"},
    {"session-grace", "FARPAGE_NODE_SESSION_GRACE", "5s", "2m",
     [](const NodeSettings& s) { return std::to_string(s.session_grace.count()); }, "5000",
     "120000"},
    {"listen-agent", "FARPAGE_NODE_LISTEN_AGENT", "127.0.0.1:1", "127.0.0.1:2",
     [](const NodeSettings& s) { return s.listen_agent; }, "127.0.0.1:1", "127.0.0.1:2"},
    {"advertise", "FARPAGE_NODE_ADVERTISE", "h1", "h2",
     [](const NodeSettings& s) { return s.advertise; }, "h1", "h2"},
    {"transports", "FARPAGE_NODE_TRANSPORTS", "tcp", "shm,tcp",
     [](const NodeSettings& s) { return s.transports; }, "tcp", "shm,tcp"},
    {"tcp-listen", "FARPAGE_NODE_TCP_LISTEN", "127.0.0.1:3", "127.0.0.1:4",
     [](const NodeSettings& s) { return s.tcp_listen; }, "127.0.0.1:3", "127.0.0.1:4"},
    {"shm-socket", "FARPAGE_NODE_SHM_SOCKET", "/run/a", "/run/b",
     [](const NodeSettings& s) { return s.shm_socket; }, "/run/a", "/run/b"},
    {"device", "FARPAGE_NODE_DEVICE", "rxe0", "mlx5_0",
     [](const NodeSettings& s) { return s.device; }, "rxe0", "mlx5_0"},
    {"device-port", "FARPAGE_NODE_DEVICE_PORT", "1", "2",
     [](const NodeSettings& s) { return std::to_string(s.device_port); }, "1", "2"},
    {"gid-index", "FARPAGE_NODE_GID_INDEX", "1", "3",
     [](const NodeSettings& s) { return std::to_string(s.gid_index); }, "1", "3"},
    {"mtu", "FARPAGE_NODE_MTU", "1024", "2048",
     [](const NodeSettings& s) { return std::to_string(s.mtu_bytes); }, "1024", "2048"},
    {"max-rd-atomic", "FARPAGE_NODE_MAX_RD_ATOMIC", "16", "8",
     [](const NodeSettings& s) { return std::to_string(s.max_rd_atomic); }, "16", "8"},
    {"max-connections", "FARPAGE_NODE_MAX_CONNECTIONS", "9", "4096",
     [](const NodeSettings& s) { return std::to_string(s.max_connections); }, "9", "4096"},
    {"numa-node", "FARPAGE_NODE_NUMA_NODE", "0", "1",
     [](const NodeSettings& s) { return std::to_string(s.numa_node); }, "0", "1"},
    {"heartbeat", "FARPAGE_NODE_HEARTBEAT", "250ms", "3s",
     [](const NodeSettings& s) { return std::to_string(s.heartbeat_interval.count()); }, "250",
     "3000"},
    {"leave-timeout", "FARPAGE_NODE_LEAVE_TIMEOUT", "2m", "5",
     [](const NodeSettings& s) { return std::to_string(s.leave_timeout.count()); }, "120000",
     "5000"},
    {"repair-rate", "FARPAGE_NODE_REPAIR_RATE", "off", "200M",
     [](const NodeSettings& s) { return s.repair_rate; }, "off", "200M"},
    {"output", "FARPAGE_OUTPUT", "json", "text", [](const NodeSettings& s) { return s.output; },
     "json", "text"},
};

TEST_F(ProgramTest, Defect6EveryNodeKnobTakesEffectAndTheCommandLineWins) {
  for (const Knob& knob : kNodeKnobs) {
    SCOPED_TRACE(knob.option);
    std::vector<std::string> base = {"node"};
    if (std::string(knob.option) != "coordinator") base.insert(base.end(), {"--coordinator", "x"});

    const std::string file =
        write_file("farpage.toml", fmt::format("[node]\n{} = \"{}\"\n", knob.option, knob.first));
    std::vector<std::string> from_file = base;
    from_file.insert(from_file.end(), {"--config", file});
    auto parsed = parse_node(from_file);
    ASSERT_TRUE(parsed->line.invocation.run) << parsed->line.problem;
    EXPECT_EQ(knob.see(parsed->settings), knob.sees_first) << "from the file";

    set_environment(knob.variable, knob.second);
    parsed = parse_node(from_file);
    ASSERT_TRUE(parsed->line.invocation.run) << parsed->line.problem;
    EXPECT_EQ(knob.see(parsed->settings), knob.sees_second) << "the environment over the file";

    from_file.insert(from_file.end(), {fmt::format("--{}", knob.option), knob.first});
    parsed = parse_node(from_file);
    ASSERT_TRUE(parsed->line.invocation.run) << parsed->line.problem;
    EXPECT_EQ(knob.see(parsed->settings), knob.sees_first) << "the command line over all";
    ::unsetenv(knob.variable);
  }
}

TEST_F(ProgramTest, Defect6EveryNodeFlagTakesEffect) {
  struct Flag {
    const char* option;
    const char* variable;
    bool NodeSettings::*value;
  };
  for (const Flag& flag : {Flag{"hugepages", "FARPAGE_NODE_HUGEPAGES", &NodeSettings::hugepages},
                           Flag{"lazy", "FARPAGE_NODE_LAZY", &NodeSettings::lazy},
                           Flag{"insecure", "FARPAGE_NODE_INSECURE", &NodeSettings::insecure}}) {
    SCOPED_TRACE(flag.option);
    const std::vector<std::string> base = {"node", "--coordinator", "x"};
    EXPECT_FALSE(parse_node(base)->settings.*flag.value);
    std::vector<std::string> given = base;
    given.push_back(fmt::format("--{}", flag.option));
    EXPECT_TRUE(parse_node(given)->settings.*flag.value);
    const std::string file =
        write_file("farpage.toml", fmt::format("[node]\n{} = true\n", flag.option));
    std::vector<std::string> from_file = base;
    from_file.insert(from_file.end(), {"--config", file});
    EXPECT_TRUE(parse_node(from_file)->settings.*flag.value);
    set_environment(flag.variable, "true");
    EXPECT_TRUE(parse_node(base)->settings.*flag.value);
    ::unsetenv(flag.variable);
  }
}

// The table above must be complete: it contains each option of the help text.
TEST_F(ProgramTest, Defect6NoNodeKnobIsWithoutATest) {
  const ParsedCommandLine help = parse({"node", "--help"});
  size_t variables = 0;
  for (size_t at = help.output.find("(Env:"); at != std::string::npos;
       at = help.output.find("(Env:", at + 1))
    ++variables;
  EXPECT_EQ(variables, std::size(kNodeKnobs) + 3) << help.output;
}

TEST_F(ProgramTest, Defect6UnknownConfigurationKeysAreErrors) {
  struct Case {
    const char* text;
    const char* names;
  };
  for (const Case& c : {Case{"[node]\nlemd = \"1G\"\n", "unknown key: node.lemd"},
                        {"[nodes]\nlend = \"1G\"\n", "unknown section: [nodes]"},
                        {"lend = \"1G\"\n", "lend"},
                        {"[node]\nlend = \"1G\"\nbogus = 1\n", "node.bogus"},
                        {"[node.more]\nlend = \"1G\"\n", "[node.more]"}}) {
    const std::string file = write_file("farpage.toml", c.text);
    const auto parsed = parse_node({"node", "--coordinator", "x", "--config", file});
    EXPECT_FALSE(parsed->line.invocation.run) << c.text;
    EXPECT_EQ(parsed->line.exit_status, kExitUsage) << c.text;
    EXPECT_NE(parsed->line.problem.find(c.names), std::string::npos) << parsed->line.problem;
  }
}

TEST_F(ProgramTest, UnknownKeyIsAnErrorAlsoWhenAnEnvironmentVariableHasItsName) {
  set_environment("FARPAGE_NODE_LEMD", "1G");
  const std::string file = write_file("farpage.toml", "[node]\nlemd = \"1G\"\n");
  const auto parsed = parse_node({"node", "--coordinator", "x", "--config", file});
  EXPECT_EQ(parsed->line.exit_status, kExitUsage);
}

TEST_F(ProgramTest, SectionsOfOtherSubcommandsMayStandInTheFile) {
  const std::string file =
      write_file("farpage.toml", "[other]\nurl = \"u\"\n[node]\nlend = \"2G\"\n");
  const auto parsed = parse_node({"node", "--coordinator", "x", "--config", file});
  ASSERT_TRUE(parsed->line.invocation.run) << parsed->line.problem;
  EXPECT_EQ(parsed->settings.lend_bytes, uint64_t{2} << 30);
}

TEST_F(ProgramTest, ConfigurationFileMayBeNamedInTheEnvironmentAndMustExist) {
  const std::string file = write_file("farpage.toml", "[node]\nlend = \"2G\"\n");
  set_environment("FARPAGE_CONFIG", file);
  EXPECT_EQ(parse_node({"node", "--coordinator", "x"})->settings.lend_bytes, uint64_t{2} << 30);
  set_environment("FARPAGE_CONFIG", directory_ + "/none");
  EXPECT_EQ(parse_node({"node", "--coordinator", "x"})->line.exit_status, kExitUsage);
  EXPECT_EQ(parse({"doctor", "--config", directory_ + "/none"}).exit_status, kExitUsage);
}

TEST_F(ProgramTest, Defect6LogLevelTakesEffectBeforeAndBehindTheSubcommand) {
  EXPECT_EQ(parse({"--log-level", "debug", "doctor"}).settings.log_level, "debug");
  EXPECT_EQ(parse({"doctor", "--log-level", "error"}).settings.log_level, "error");
  set_environment("FARPAGE_LOG_LEVEL", "off");
  EXPECT_EQ(parse({"doctor"}).settings.log_level, "off");
  EXPECT_EQ(parse({"doctor", "--log-level", "loud"}).exit_status, kExitUsage);
}

TEST_F(ProgramTest, WrongUsageIsOneLineAndExitStatus2) {
  struct Case {
    std::vector<std::string> arguments;
    const char* names;
  };
  for (const Case& c :
       {Case{{}, "subcommand"},
        {{"bogus"}, "'bogus'"},
        {{"node"}, "--coordinator"},
        {{"node", "--coordinator", "x", "--bogus"}, "--bogus"},
        {{"node", "--coordinator", "x", "--lend", "3Q"}, "'3Q' is not a size"},
        {{"node", "--coordinator", "x", "--leave-timeout", "soon"}, "'soon' is not a duration"},
        {{"node", "--coordinator", "x", "--numa-node", "4096"}, "--numa-node"},
        {{"node", "--coordinator", "x", "--output", "xml"}, "--output"},
        {{"node", "--coordinator", "x", "--lend", "99999999T"}, "'99999999T' is too large"},
        {{"node", "--coordinator", "x", "--leave-timeout", "9999h"}, "'9999h' is too long"},
        {{"run", "--log-level", "debug", "--", "ls"},
         "--log-level is an option of all subcommands: write it before run"},
        {{"bench", "fault", "--bogus"}, "(see farpage bench fault --help)"},
        {{"bench", "bogus"}, "there is no subcommand 'bogus' (see farpage bench --help)"},
        {{"doctor", "extra"}, "extra"}}) {
    const ParsedCommandLine parsed = parse(c.arguments);
    EXPECT_FALSE(parsed.invocation.run);
    EXPECT_EQ(parsed.exit_status, kExitUsage);
    EXPECT_EQ(std::count(parsed.problem.begin(), parsed.problem.end(), '\n'), 1) << parsed.problem;
    EXPECT_NE(parsed.problem.find(c.names), std::string::npos) << parsed.problem;
    EXPECT_NE(parsed.problem.find("--help)"), std::string::npos) << parsed.problem;
    EXPECT_EQ(parsed.output, "");
  }
}

TEST_F(ProgramTest, HelpOfEverySubcommandShowsExamples) {
  const std::string all = parse({"--help"}).output;
  for (const char* name : {"coordinator", "node", "status", "doctor", "version"}) {
    const ParsedCommandLine help = parse({name, "--help"});
    EXPECT_EQ(help.exit_status, kExitOk) << name;
    EXPECT_NE(help.output.find(fmt::format("Examples:\n  farpage {}", name)), std::string::npos)
        << help.output;
    EXPECT_NE(all.find(fmt::format("\n  {}", name)), std::string::npos) << all;
  }
  EXPECT_NE(all.find("Examples:"), std::string::npos);
  EXPECT_EQ(parse({"--version"}).output, "farpage " FARPAGE_VERSION "\n");
}

TEST_F(ProgramTest, CommandLineOfAProgramIsTakenUntouched) {
  struct Case {
    Words arguments;
    Words command;
  };
  for (const Case& c :
       {Case{{"do", "--local", "64M", "--", "sort", "-S", "1G", "--help"},
             {"sort", "-S", "1G", "--help"}},
        {{"do", "--local", "64M", "sort", "--local", "x", "--log-level"},
         {"sort", "--local", "x", "--log-level"}},
        {{"do", "--", "--odd"}, {"--odd"}},
        {{"do", "sh", "-c", "a -- b", "--", "-x"}, {"sh", "-c", "a -- b", "--", "-x"}}}) {
    uint64_t local = 0;
    Words command;
    ParsedCommandLine line;
    const std::vector<AddSubcommand> subcommands = {[&](CLI::App& root, Invocation& invocation) {
      Subcommand subcommand(root, "do", "", {"farpage do"});
      subcommand.size("--local", local, "").command_line(command, "the program");
      subcommand.on_run(invocation, [] { return kExitOk; });
    }};
    parse_command_line(c.arguments, subcommands, line);
    ASSERT_TRUE(line.invocation.run) << line.problem << line.output;
    EXPECT_EQ(command, c.command);
  }
}

TEST(Duration, ParsesWhatPeopleWriteAndNamesTheRest) {
  EXPECT_EQ(*parse_duration("500ms"), Milliseconds(500));
  EXPECT_EQ(*parse_duration("30s"), Milliseconds(30'000));
  EXPECT_EQ(*parse_duration("30"), Milliseconds(30'000));
  EXPECT_EQ(*parse_duration("2m"), Milliseconds(120'000));
  EXPECT_EQ(*parse_duration("1h"), Milliseconds(3'600'000));
  EXPECT_EQ(*parse_duration("0"), Milliseconds(0));
  for (const char* text :
       {"", "s", "-1s", "1.5s", "1d", "1 s", "99999999999999999999s", "9999999h"})
    EXPECT_EQ(parse_duration(text).error().code, ErrorCode::kInvalid) << text;
}

TEST_F(ProgramTest, TokenFilesMustBePrivateAndHoldOneToken) {
  EXPECT_EQ(*read_token(""), "");
  EXPECT_EQ(*read_token(write_file("good", "0123456789abcdef\n")), "0123456789abcdef");
  const auto open_to_all = read_token(write_file("open", "0123456789abcdef\n", 0644));
  ASSERT_FALSE(open_to_all.has_value());
  EXPECT_NE(open_to_all.error().context.find("chmod 600"), std::string::npos);
  EXPECT_EQ(read_token(directory_ + "/none").error().code, ErrorCode::kNotFound);
  for (const std::string& text :
       {std::string(), std::string("short"), std::string("0123456789abcdef\nmore"),
        std::string("0123456789 abcdef"), std::string(300, 'x')})
    EXPECT_EQ(read_token(write_file("bad", text)).error().code, ErrorCode::kInvalid) << text;
}

}  // namespace
}  // namespace farpage::cli
