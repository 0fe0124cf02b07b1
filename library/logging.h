// The destination of the pager's log lines inside a foreign program.
#pragma once

namespace farpage::library {

// spdlog's own default is standard output, which belongs to the program: unless the program has
// set a default logger of its own (then that one is used), warnings and errors go to standard
// error.
void log_to_stderr_if_unset();

}  // namespace farpage::library
