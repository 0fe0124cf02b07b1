// Checks whether a program can use far memory before it is started, and whether the shim can be
// preloaded: a static program would not load it and would silently use local memory only.
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
  // Why nothing can be preloaded: it is statically linked, or built with a sanitizer that has its
  // own malloc. Empty: it can. For a message behind the program's name.
  std::string obstacle = {};
  bool has_sanitizer = false;
  // What env(1) in its #! line executes; an agent would be injected into env. Empty: no env there.
  std::string by_env = {};
};

// The file that execvp of `path` would run. kUnsupported, with the reason and the remedy, when it
// cannot use far memory: not a 64-bit ELF program, or it changes its privileges (setuid, setgid,
// file capabilities). kNotFound: an interpreter is missing. kDenied: a file cannot be read.
Result<CheckedProgram> check_program(const std::string& path);

}  // namespace farpage::cli
