// farpage resize: changes the budget of running programs.
#include <fmt/format.h>

#include <limits>

#include "base/size.h"
#include "cli/run_directory.h"
#include "cli/subcommand.h"
#include "pager/options.h"
#include "serve/budget_group.h"
#include "uffd/resize_call.h"

namespace farpage::cli {
namespace {

struct ResizeSettings {
  int64_t pid = 0;
  uint64_t local_bytes = 0;
};

Result<int> resize(const ResizeSettings& settings) {
  const Status possible = pager::validate_local(settings.local_bytes);
  if (!possible) return fail(possible.error().code, "--" + possible.error().context);
  FARPAGE_TRY(socket, connect_to_run(static_cast<pid_t>(settings.pid)));
  const Result<uffd::ResizedProcesses> processes = uffd::resize(socket, settings.local_bytes);
  if (!processes) return fail_with("no budget was changed", processes.error());
  for (const uffd::handover::ResizedProcess& process : *processes)
    fmt::print("{}: {} -> {}\n", serve::label_of(process.program, process.pid),
               format_size(process.before_bytes), format_size(process.after_bytes));
  if (processes->empty())
    fmt::print("no process has far memory yet: the budget will be {}\n",
               format_size(settings.local_bytes));
  return kExitOk;
}

}  // namespace

void add_resize(CLI::App& root, Invocation& invocation) {
  const auto settings = std::make_shared<ResizeSettings>();
  Subcommand(
      root, "resize", "Change the local-memory budget of a running program",
      {"farpage resize 4711 --local 128M", "farpage resize $(pgrep -o redis) --local 2G",
       "The new budget is that of the whole farpage run, shared by its processes, or of each "
       "process when it was started with --local-each.",
       "Excess pages are evicted at once, without waiting for a touch."})
      .positional("PID", settings->pid, 1, std::numeric_limits<int32_t>::max(),
                  "Process id of farpage run, or of a program that it started")
      .size("--local", settings->local_bytes, "Far memory that may be resident on this host")
      .required()
      .on_run(invocation, [settings] { return resize(*settings); });
}

}  // namespace farpage::cli
