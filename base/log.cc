#include "base/log.h"

#include <spdlog/spdlog.h>

namespace farpage::log {
namespace {

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

bool enabled(Level level) {
  return spdlog::should_log(spdlog_level(level));
}

void write(Level level, fmt::string_view format, fmt::format_args args) {
  spdlog::default_logger_raw()->log(spdlog_level(level), fmt::vformat(format, args));
}

}  // namespace farpage::log
