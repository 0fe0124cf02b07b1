#include "cli/program.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "cli/logging.h"

namespace farpage::cli {
namespace {

// In CLI11 the configuration file takes precedence over the environment. This class reverses that:
// it drops an item of the file when the environment variable of its option is set.
class EnvironmentFirst final : public CLI::ConfigTOML {
 public:
  explicit EnvironmentFirst(const CLI::App& root) : root_(root) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> kept = CLI::ConfigTOML::from_config(input);
    std::erase_if(kept, [this](const CLI::ConfigItem& item) { return is_in_environment(item); });
    return kept;
  }

 private:
  bool is_in_environment(const CLI::ConfigItem& item) const {
    const CLI::App* app = &root_;
    for (const std::string& parent : item.parents) {
      const auto children =
          app->get_subcommands([&](const CLI::App* child) { return child->get_name() == parent; });
      if (children.empty()) return false;
      app = children.front();
    }
    const CLI::Option* option = app->get_option_no_throw("--" + item.name);
    // As in CLI11, a key may be the short form.
    if (option == nullptr && item.name.size() == 1)
      option = app->get_option_no_throw("-" + item.name);
    if (option == nullptr || option->get_envname().empty()) return false;
    const char* value = std::getenv(option->get_envname().c_str());
    return value != nullptr && *value != '\0';
  }

  const CLI::App& root_;
};

void add_root_options(CLI::App& root, ProgramSettings& settings) {
  root.description("Lets unmodified programs use the memory of other machines.");
  root.footer(
      "Each option is also an environment variable and a key of the configuration file; the "
      "command\n"
      "line wins over the environment, and the environment over the file.\n"
      "Exit status: 0 success, 1 failure, 2 wrong usage; farpage run: see farpage run --help.\n\n"
      "Examples:\n"
      "  farpage run --local 64M --stats -- sort -S 1G big.txt\n"
      "  farpage doctor\n"
      "  farpage coordinator --listen 127.0.0.1:7070\n"
      "  farpage node --coordinator http://127.0.0.1:7070 --lend 1G\n"
      "  farpage image push vm.mem --name ubuntu --coordinator http://127.0.0.1:7070\n"
      "  farpage serve --image ubuntu --socket vm.sock --coordinator http://127.0.0.1:7070\n"
      "  farpage node --help");
  root.require_subcommand(1);
  root.allow_config_extras(CLI::config_extras_mode::error);
  root.config_formatter(std::make_shared<EnvironmentFirst>(root));
  const char* file = std::getenv("FARPAGE_CONFIG");
  const bool named = file != nullptr && *file != '\0';
  root.set_config("--config", named ? file : "",
                  "Configuration file (TOML): one section per subcommand (Env:FARPAGE_CONFIG)",
                  named);
  root.add_option("--log-level", settings.log_level, "How much to log on standard error")
      ->default_str(settings.log_level)
      ->check(CLI::IsMember(log_levels()))
      ->envname("FARPAGE_LOG_LEVEL");
  root.set_version_flag("--version", "farpage " FARPAGE_VERSION);
}

// "INI was not able to parse node.lemd" -> a text that names the wrong key; others are unchanged.
std::string configuration_text(std::string text) {
  constexpr std::string_view kPrefix = "INI was not able to parse ";
  constexpr std::string_view kSection = ".++";
  if (text.rfind(kPrefix, 0) != 0) return text;
  text.erase(0, kPrefix.size());
  if (text.size() <= kSection.size() || !text.ends_with(kSection))
    return fmt::format("the configuration file has an unknown key: {}", text);
  text.erase(text.size() - kSection.size());
  return fmt::format("the configuration file has an unknown section: [{}]", text);
}

// Joins the lines of a CLI11 message into one.
std::string one_line(const CLI::App* app, const CLI::Error& error) {
  std::string text = configuration_text(error.what());
  const std::vector<std::string> unknown = app->remaining(true);
  const bool is_of_root = !unknown.empty() && app->get_option_no_throw(unknown.front()) != nullptr;
  std::string command = "farpage";
  for (; !app->get_subcommands().empty(); app = app->get_subcommands().front())
    command += " " + app->get_subcommands().front()->get_name();
  // CLI11 reports a misspelt subcommand as a missing one.
  const bool has_subcommands = !app->get_subcommands([](const CLI::App*) { return true; }).empty();
  if (has_subcommands && !unknown.empty())
    text = fmt::format("there is no subcommand '{}'", unknown.front());
  // Where a command line follows, they would be its options.
  if (is_of_root)
    text = fmt::format("{} is an option of all subcommands: write it before {}", unknown.front(),
                       app->get_name());
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return fmt::format("{}: {} (see {} --help)\n", command, text, command);
}

// An exit status of 0 says that what was printed has been written, to a full disk, too.
int after_output(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fprintf(stderr, "farpage: cannot write to standard output: %s\n", std::strerror(errno));
  return status == kExitOk ? kExitFailure : status;
}

}  // namespace

int exit_status_of(const Result<int>& ended) {
  if (ended) return after_output(*ended);
  std::fprintf(stderr, "farpage: %s\n", ended.error().message().c_str());
  return ended.error().code == ErrorCode::kInvalid ? kExitUsage : kExitFailure;
}

std::vector<AddSubcommand> all_subcommands() {
  return {add_run,         add_attach,      add_detach,    add_pager,  add_upgrade, add_resize,
          add_coordinator, add_maintenance, add_rebalance, add_image,  add_serve,   add_page_server,
          add_share,       add_node,        add_status,    add_doctor, add_bench,   add_version};
}

void parse_command_line(const std::vector<std::string>& arguments,
                        std::span<const AddSubcommand> subcommands, ParsedCommandLine& parsed) {
  CLI::App root("", "farpage");
  add_root_options(root, parsed.settings);
  for (const AddSubcommand& add : subcommands) add(root, parsed.invocation);
  root.failure_message(
      [](const CLI::App* app, const CLI::Error& error) { return one_line(app, error); });
  try {
    root.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    std::ostringstream output;
    std::ostringstream problem;
    parsed.exit_status = root.exit(error, output, problem) == 0 ? kExitOk : kExitUsage;
    parsed.output = output.str();
    parsed.problem = problem.str();
    parsed.invocation.run = nullptr;
  }
}

int run_program(const std::vector<std::string>& arguments) {
  ParsedCommandLine parsed;
  parse_command_line(arguments, all_subcommands(), parsed);
  if (!parsed.invocation.run) {
    std::fputs(parsed.output.c_str(), stdout);
    std::fputs(parsed.problem.c_str(), stderr);
    return after_output(parsed.exit_status);
  }
  set_up_logging(parsed.settings.log_level);
  return exit_status_of(parsed.invocation.run());
}

}  // namespace farpage::cli
