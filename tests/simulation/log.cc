// The product's log is part of the trace: printing it would take time, and a lock.
#include "base/log.h"

#include <string>

#include "scheduler.h"

namespace farpage::log {

bool enabled(Level) {
  return simulation::Scheduler::running() != nullptr;
}

void write(Level, fmt::string_view format, fmt::format_args args) {
  simulation::Scheduler* const scheduler = simulation::Scheduler::running();
  if (scheduler == nullptr) return;
  const std::string text = fmt::vformat(format, args);
  scheduler->note({.what = "logs", .text = text});
}

}  // namespace farpage::log
