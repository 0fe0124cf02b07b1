// farpage bench: the benchmarks, one subcommand each.
#include "cli/subcommand.h"

namespace farpage::cli {

void add_bench(CLI::App& root, Invocation& invocation) {
  CLI::App& group = add_group(root, "bench", "Measure faults, the wire, and the floors below both",
                              {"farpage bench ladder", "farpage bench fault --transport tcp",
                               "farpage bench fault --help"});
  add_bench_fault(group, invocation);
  add_bench_read(group, invocation);
  add_bench_ladder(group, invocation);
  add_bench_replay(group, invocation);
}

}  // namespace farpage::cli
