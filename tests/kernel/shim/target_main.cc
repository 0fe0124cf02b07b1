// The program that the shim's tests load the shim into.
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "scenario.h"

namespace farpage::test {
namespace {

struct Named {
  const char* name;
  Scenario run;
};

constexpr Named kScenarios[] = {
    {"places", run_places},
    {"unmap", run_unmap},
    {"unmap-across-the-end", run_unmap_across_the_end},
    {"dontneed", run_dontneed},
    {"advice", run_advice},
    {"remap", run_remap},
    {"remap-refused", run_remap_refused},
    {"lock", run_lock},
    {"fixed", run_fixed},
    {"casual-hints", run_casual_hints},
    {"needed-hints", run_needed_hints},
    {"full-window", run_full_window},
    {"drop", run_drop},
    {"poison", run_poison},
    {"pager-lost", run_pager_lost},
    {"stress", run_stress},
    {"exit-status", run_exit_status},
    {"fork", run_fork},
    {"fork-refused", run_fork_refused},
    {"bare-fork", run_bare_fork},
    {"exec", run_exec},
    {"spawn", run_spawn},
    {"close-all", run_close_all},
    {"close-output", run_close_output},
    {"main-thread-exit", run_main_thread_exit},
    {"threads-fork", run_threads_fork},
    {"terminal", run_terminal},
    {"daemon", run_daemon},
    {"old-kernel", run_old_kernel},
};

}  // namespace
}  // namespace farpage::test

int main(int count, char** arguments) {
  for (const auto& scenario : farpage::test::kScenarios) {
    if (count >= 2 && strcmp(arguments[1], scenario.name) == 0) {
      return scenario.run(count >= 3 ? arguments[2] : nullptr);
    }
  }
  fprintf(stderr, "no such scenario\n");
  return 2;
}
