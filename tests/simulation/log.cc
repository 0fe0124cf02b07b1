// The product's log is part of the trace: printing it would take time, and a lock.
#include "log.h"

#include <string>

#include "base/log.h"
#include "scheduler.h"

namespace farpage::simulation {
namespace {

std::string_view forbidden;

}  // namespace

void forbid_log(std::string_view text) {
  forbidden = text;
}

}  // namespace farpage::simulation

namespace farpage::log {

bool enabled(Level) {
  return simulation::Scheduler::running() != nullptr;
}

void write(Level, fmt::string_view format, fmt::format_args args) {
  simulation::Scheduler* const scheduler = simulation::Scheduler::running();
  if (scheduler == nullptr) return;
  const std::string text = fmt::vformat(format, args);
  scheduler->note({.what = "logs", .text = text});
  const std::string_view forbidden = simulation::forbidden;
  if (!forbidden.empty() && text.find(forbidden) != std::string::npos)
    scheduler->fail("logged: " + text);
}

}  // namespace farpage::log
