// The log of this process: spdlog's default logger behind one call that is compiled once. A format
// string is still checked at compile time, but no caller instantiates spdlog (which cost 4 of the
// 6 seconds it took to compile a file with four log lines).
//
// Lines read `folder: event key=value ...`. Any thread may call; a line below the level costs one
// load. The program sets the destination and the level: cli/logging, library/logging.
#pragma once

#include <fmt/core.h>

namespace farpage::log {

enum class Level { kDebug, kInfo, kWarn, kError };

bool enabled(Level level);
void write(Level level, fmt::string_view format, fmt::format_args args);

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kDebug)) write(Level::kDebug, format, fmt::make_format_args(args...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kInfo)) write(Level::kInfo, format, fmt::make_format_args(args...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kWarn)) write(Level::kWarn, format, fmt::make_format_args(args...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::kError)) write(Level::kError, format, fmt::make_format_args(args...));
}

}  // namespace farpage::log
