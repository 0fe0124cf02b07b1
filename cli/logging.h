// Where log lines go: one place for the whole program.
#pragma once

#include <string>
#include <vector>

namespace farpage::cli {

// The names that --log-level knows, from most to least.
std::vector<std::string> log_levels();

// Plain lines on standard error: time, level, text. `level` is one of log_levels().
void set_up_logging(const std::string& level);

}  // namespace farpage::cli
