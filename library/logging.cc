#include "library/logging.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace farpage::library {

void log_to_stderr_if_unset() {
  const std::shared_ptr<spdlog::logger> current = spdlog::default_logger();
  const bool untouched =
      current && current->name().empty() && current->sinks().size() == 1 &&
      std::dynamic_pointer_cast<spdlog::sinks::stdout_color_sink_mt>(current->sinks().front());
  if (!untouched) return;
  auto logger = std::make_shared<spdlog::logger>(
      "farpage", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace farpage::library
