// The destination of the pager's log lines inside a program that uses the library.
#pragma once

namespace farpage::library {

// Sends warnings and errors to standard error, because standard output (spdlog's default) belongs
// to the program. If the program has set a default logger of its own, that one is used.
void log_to_stderr_if_unset();

}  // namespace farpage::library
