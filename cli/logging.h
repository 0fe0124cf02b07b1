// The log of the program.
#pragma once

#include <string>
#include <vector>

namespace farpage::cli {

// The names of --log-level, from the most verbose to the least.
std::vector<std::string> log_levels();

// Plain lines on standard error: time, level, text. `level` is one of log_levels().
void set_up_logging(const std::string& level);

}  // namespace farpage::cli
