// farpage bench: the benchmarks, one subcommand each.
#include "cli/subcommand.h"

namespace farpage::cli {

void add_bench(CLI::App& root, Invocation& invocation) {
  CLI::App& group = add_group(
      root, "bench", "Measure faults, the wire, and what comes and goes",
      {"farpage bench ladder", "farpage bench fault --transport tcp", "farpage bench fault --help",
       "farpage bench scan", "farpage bench evict --local 256M"});
  add_bench_fault(group, invocation);
  add_bench_read(group, invocation);
  add_bench_ladder(group, invocation);
  add_bench_scan(group, invocation);
  add_bench_evict(group, invocation);
}

}  // namespace farpage::cli
