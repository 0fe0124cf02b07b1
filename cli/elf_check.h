// Can a program be given far memory? Looked at before it is started: a static one would never load
// the shim and silently run in local memory alone.
#pragma once

#include <string>

#include "base/result.h"

namespace farpage::cli {

// The file that execvp would run; kNotFound names the command and what was searched.
Result<std::string> find_program(const std::string& command);

// The ELF program that execve of `path` runs in the end: itself, or the interpreter that its #!
// line names. kInvalid, with the reason, when the loader would not preload the shim into it: not a
// 64-bit ELF program, statically linked, or one that changes its privileges (setuid, setgid, file
// capabilities). Whatever is neither ELF nor a script with #! is handed to /bin/sh, as execvp does.
Result<std::string> check_program(const std::string& path);

}  // namespace farpage::cli
