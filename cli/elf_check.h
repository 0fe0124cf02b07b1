// Can a program be given far memory? Looked at before it is started: a static one would never load
// the shim and silently run in local memory alone.
#pragma once

#include <string>

#include "base/result.h"

namespace farpage::cli {

// The file that execvp would run. Fails with the command and what was searched: kNotFound when
// there is none, kDenied when it is there and cannot be executed.
Result<std::string> find_program(const std::string& command);

struct CheckedProgram {
  std::string elf;  // what runs in the end: the program, or the interpreter that its #! line names
  // It is neither ELF nor a script with #!, and is to be handed to /bin/sh, as execvp does.
  bool needs_shell = false;
};

// What execvp of `path` comes to. kUnsupported, with the reason and the cure, when it cannot have
// far memory: not a 64-bit ELF program, statically linked, one that changes its privileges (setuid,
// setgid, file capabilities), or built with a sanitizer that has a malloc of its own. kNotFound
// when an interpreter is missing, kDenied when a file cannot be read.
Result<CheckedProgram> check_program(const std::string& path);

}  // namespace farpage::cli
