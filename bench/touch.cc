#include "bench/touch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/cpus.h"
#include "base/strong.h"

namespace farpage::bench {
namespace {

// Of the process: a pinned thread would report only its own CPU.
std::vector<int> usable_cpus() {
  return allowed_cpus(::getpid());
}

}  // namespace

bool is_present(const void* page) {
  unsigned char state = 0;
  const int result = ::mincore(const_cast<void*>(page), kPageBytes, &state);
  FARPAGE_CHECK(result == 0, "mincore of %p failed", page);
  return (state & 1) != 0;
}

uint32_t usable_cpu_count() {
  return static_cast<uint32_t>(std::max<size_t>(1, usable_cpus().size()));
}

void pin_this_thread(uint32_t index) {
  const std::vector<int> cpus = usable_cpus();
  if (!cpus.empty()) (void)run_on(cpus[index % cpus.size()]);
}

void unpin_this_thread() {
  (void)run_on(usable_cpus());
}

}  // namespace farpage::bench
