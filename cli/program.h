// The command line as a whole: from arguments to an exit status.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/subcommand.h"

namespace farpage::cli {

// The options that stand before any subcommand.
struct ProgramSettings {
  std::string log_level = "info";
};

// Outcome of reading the command line, the environment and the configuration file. When `run` is
// empty there is nothing to do but to print `output` (help, version) or `problem` (one line) and to
// exit with `exit_status`.
struct ParsedCommandLine {
  Invocation invocation;
  ProgramSettings settings;
  int exit_status = kExitOk;
  std::string output;   // for standard output
  std::string problem;  // for standard error
};

using AddSubcommand = std::function<void(CLI::App& root, Invocation& invocation)>;

// `arguments` without the program's name. `parsed` must outlive the run: options live in it.
void parse_command_line(const std::vector<std::string>& arguments,
                        std::span<const AddSubcommand> subcommands, ParsedCommandLine& parsed);

// All subcommands of the program, in the order of the help text.
std::vector<AddSubcommand> all_subcommands();

// Everything main() does.
int run_program(const std::vector<std::string>& arguments);

}  // namespace farpage::cli
