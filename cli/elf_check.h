// Checks whether a program can use far memory before it is started. A static program would not load
// the shim and would silently use local memory only.
#pragma once

#include <string>

#include "base/result.h"

namespace farpage::cli {

// The file that execvp would run. The error names the command and the search path: kNotFound when
// no file exists, kDenied when one exists but cannot be executed.
Result<std::string> find_program(const std::string& command);

struct CheckedProgram {
  std::string elf;  // the file that is executed: the program, or the interpreter of its #! line
  // The program is neither ELF nor a script with #!, and /bin/sh must run it, as execvp does.
  bool needs_shell = false;
};

// The file that execvp of `path` would run. kUnsupported, with the reason and the remedy, when it
// cannot use far memory: not a 64-bit ELF program, statically linked, changes its privileges
// (setuid, setgid, file capabilities), or built with a sanitizer that has its own malloc.
// kNotFound: an interpreter is missing. kDenied: a file cannot be read.
Result<CheckedProgram> check_program(const std::string& path);

}  // namespace farpage::cli
