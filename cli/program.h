// The command line as a whole: from arguments to an exit status.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/subcommand.h"

namespace farpage::cli {

// The options that precede the subcommand.
struct ProgramSettings {
  std::string log_level = "info";
};

// Outcome of reading the command line, the environment and the configuration file. When
// `invocation.run` is empty, the program only prints `output` (help, version) or `problem` (one
// line) and exits with `exit_status`.
struct ParsedCommandLine {
  Invocation invocation;
  ProgramSettings settings;
  int exit_status = kExitOk;
  std::string output;   // for standard output
  std::string problem;  // for standard error
};

using AddSubcommand = std::function<void(CLI::App& root, Invocation& invocation)>;

// `arguments` without the program's name. `parsed` holds the options and must outlive the run.
void parse_command_line(const std::vector<std::string>& arguments,
                        std::span<const AddSubcommand> subcommands, ParsedCommandLine& parsed);

// All subcommands of the program, in the order of the help text.
std::vector<AddSubcommand> all_subcommands();

// Prints the error, if it is one; the exit status of the process.
int exit_status_of(const Result<int>& ended);

// The body of main().
int run_program(const std::vector<std::string>& arguments);

}  // namespace farpage::cli
