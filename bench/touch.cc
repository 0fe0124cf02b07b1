#include "bench/touch.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/strong.h"

namespace farpage::bench {
namespace {

// The CPUs of the process: a pinned thread would report only its own CPU.
cpu_set_t usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  (void)::sched_getaffinity(::getpid(), sizeof set, &set);
  return set;
}

}  // namespace

bool is_present(const void* page) {
  unsigned char state = 0;
  const int result = ::mincore(const_cast<void*>(page), kPageBytes, &state);
  FARPAGE_CHECK(result == 0, "mincore of %p failed", page);
  return (state & 1) != 0;
}

uint32_t usable_cpu_count() {
  const cpu_set_t set = usable_cpus();
  return static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
}

void pin_this_thread(uint32_t index) {
  const cpu_set_t usable = usable_cpus();
  uint32_t left = index % usable_cpu_count();
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &usable) || left-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)::pthread_setaffinity_np(::pthread_self(), sizeof one, &one);
    return;
  }
}

void unpin_this_thread() {
  const cpu_set_t usable = usable_cpus();
  (void)::pthread_setaffinity_np(::pthread_self(), sizeof usable, &usable);
}

}  // namespace farpage::bench
