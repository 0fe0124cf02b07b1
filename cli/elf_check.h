// Can this program be given far memory? The shim comes in by LD_PRELOAD, so the program has to be
// dynamically linked and must not change its privileges when it starts.
#pragma once

#include <string>

#include "base/result.h"

namespace farpage::cli {

// The file that execvp(3) would run for `command`: itself if it has a slash, else found in PATH.
Result<std::string> find_program(const std::string& command);

// kInvalid with the reason when the program cannot take the shim: statically linked, setuid or with
// file capabilities, of another machine. Scripts are judged by their interpreter.
Status check_program(const std::string& path);

}  // namespace farpage::cli
