// farpage bench: the benchmarks, one subcommand each.
#include "cli/subcommand.h"

namespace farpage::cli {

void add_bench(CLI::App& root, Invocation& invocation) {
  CLI::App& group =
      add_group(root, "bench", "Measure faults, transports, eviction and the coordinator",
                {"farpage bench ladder", "farpage bench fault --transport tcp",
                 "farpage bench fault --help", "farpage bench scan",
                 "farpage bench evict --local 256M", "farpage bench connect --transport tcp",
                 "farpage bench register", "farpage bench control --threads 16"});
  add_bench_fault(group, invocation);
  add_bench_read(group, invocation);
  add_bench_ladder(group, invocation);
  add_bench_scan(group, invocation);
  add_bench_evict(group, invocation);
  add_bench_connect(group, invocation);
  add_bench_register(group, invocation);
  add_bench_control(group, invocation);
}

}  // namespace farpage::cli
