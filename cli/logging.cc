#include "cli/logging.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace farpage::cli {

std::vector<std::string> log_levels() {
  return {"trace", "debug", "info", "warning", "error", "off"};
}

void set_up_logging(const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("farpage",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace farpage::cli
