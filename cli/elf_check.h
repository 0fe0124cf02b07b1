// Checks, before a program is started, whether it can have far memory. A static program would not
// load the shim and would silently run in local memory only.
#pragma once

#include <string>

#include "base/result.h"

namespace farpage::cli {

// The file that execvp would run. The error names the command and where it was searched: kNotFound
// when there is none, kDenied when it exists and cannot be executed.
Result<std::string> find_program(const std::string& command);

struct CheckedProgram {
  std::string elf;  // the file that runs finally: the program, or the interpreter of its #! line
  // It is neither ELF nor a script with #!, and must be run by /bin/sh, as execvp does.
  bool needs_shell = false;
};

// The file that execvp of `path` would run. kUnsupported, with the reason and the cure, when it
// cannot have far memory: not a 64-bit ELF program, statically linked, one that changes its
// privileges (setuid, setgid, file capabilities), or built with a sanitizer that has a malloc of
// its own. kNotFound when an interpreter is missing, kDenied when a file cannot be read.
Result<CheckedProgram> check_program(const std::string& path);

}  // namespace farpage::cli
