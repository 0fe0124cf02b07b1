// simulate FIRST COUNT: runs so many seeds from FIRST on, each in a process of its own, so that its
// memory is the same in each run. Ends with 1 at the first one that fails, and prints its last
// steps; `simulate SEED 1` repeats it.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "defects.h"
#include "simulation.h"

namespace {

using farpage::simulation::Outcome;
using farpage::simulation::Trace;

struct Arguments {
  uint64_t first = 0;
  uint64_t count = 0;
  size_t steps = 300;              // that are printed of a failing run
  uint64_t page = Trace::kNoPage;  // only these, if given
  uint64_t defect = 0;             // in the planted variant
  bool counts_failures = false;    // runs all seeds
};

// What the process of a run leaves behind. In memory that its parent shares.
struct Record {
  bool ended = false;
  std::array<char, 400> failure{};
  uint64_t trace_hash = 0;
  uint64_t steps = 0;
  uint64_t remote_faults = 0;
  uint64_t evicted = 0;
  uint64_t prefetched = 0;
  uint64_t from_copies = 0;
  uint64_t repaired = 0;
  uint64_t bus_errors = 0;
  uint64_t forks = 0;
  Trace trace;
};

constexpr rlim_t kMaxSeconds = 60;  // of CPU time, for one run

unsigned long long number(uint64_t value) {
  return value;
}

void set_failure(Record& record, const char* text) {
  std::snprintf(record.failure.data(), record.failure.size(), "%s", text);
}

[[noreturn]] void run_child(uint64_t seed, Record& record, int errors) {
  ::dup2(errors, STDERR_FILENO);  // FARPAGE_CHECK prints there
  // A loop without a step.
  const rlimit limit{.rlim_cur = kMaxSeconds, .rlim_max = kMaxSeconds};
  (void)::setrlimit(RLIMIT_CPU, &limit);
  const Outcome outcome = farpage::simulation::simulate(seed, record.trace);
  set_failure(record, outcome.failure.c_str());
  record.trace_hash = outcome.trace_hash;
  record.steps = outcome.steps;
  record.remote_faults = outcome.remote_faults;
  record.evicted = outcome.evicted;
  record.prefetched = outcome.prefetched;
  record.from_copies = outcome.from_copies;
  record.repaired = outcome.repaired;
  record.bus_errors = outcome.bus_errors;
  record.forks = outcome.forks;
  record.ended = true;
  ::_exit(0);
}

// The first line of what a run that was killed has printed.
void explain(Record& record, int errors, int status) {
  std::array<char, 300> text{};
  const ssize_t got = ::pread(errors, text.data(), text.size() - 1, 0);
  if (got > 0) {
    *std::find(text.begin(), text.end() - 1, '\n') = '\0';
    set_failure(record, text.data());
  } else {
    set_failure(record, WIFSIGNALED(status) ? ::strsignal(WTERMSIG(status)) : "it has exited");
  }
}

void run_seed(uint64_t seed, uint64_t page, Record& record, int errors) {
  record.ended = false;
  std::construct_at(&record.trace);
  record.trace.keep_only(page);
  if (::ftruncate(errors, 0) != 0 || ::lseek(errors, 0, SEEK_SET) != 0) std::abort();
  const pid_t child = ::fork();
  if (child == 0) run_child(seed, record, errors);
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) std::abort();
  if (!record.ended) explain(record, errors, status);
}

bool parse(int count, char** arguments, Arguments& parsed) {
  if (count < 3) return false;
  parsed.first = std::strtoull(arguments[1], nullptr, 10);
  parsed.count = std::strtoull(arguments[2], nullptr, 10);
  for (int i = 3; i < count; ++i) {
    const std::string name = arguments[i];
    if (name == "--all") {
      parsed.counts_failures = true;
      continue;
    }
    if (i + 1 == count) return false;
    const uint64_t value = std::strtoull(arguments[++i], nullptr, 10);
    if (name == "--steps") {
      parsed.steps = value;
    } else if (name == "--page") {
      parsed.page = value;
    } else if (name == "--defect") {
      parsed.defect = value;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  Arguments parsed;
  if (!parse(count, arguments, parsed)) {
    std::fprintf(stderr,
                 "usage: simulate FIRST COUNT [--all] [--steps N] [--page N] [--defect N]\n"
                 "       simulate 1 1000\n");
    return 2;
  }
  void* const memory =
      ::mmap(nullptr, sizeof(Record), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const int errors = ::memfd_create("simulation-errors", MFD_CLOEXEC);
  if (memory == MAP_FAILED || errors < 0) return 2;
  Record& record = *new (memory) Record;
  farpage::simulation::plant(parsed.defect);
  Outcome sum;
  uint64_t failed = 0;
  for (uint64_t seed = parsed.first; seed < parsed.first + parsed.count; ++seed) {
    run_seed(seed, parsed.page, record, errors);
    if (record.failure[0] != '\0') {
      if (failed++ == 0)
        std::printf("seed %llu failed after %llu steps: %s\n", number(seed), number(record.steps),
                    record.failure.data());
      if (parsed.counts_failures) continue;
      record.trace.print(parsed.steps);
      std::printf("seed %llu failed: %s\nTo repeat it: %s %llu 1 --steps 2000\n", number(seed),
                  record.failure.data(), arguments[0], number(seed));
      return 1;
    }
    sum.steps += record.steps;
    sum.remote_faults += record.remote_faults;
    sum.evicted += record.evicted;
    sum.prefetched += record.prefetched;
    sum.from_copies += record.from_copies;
    sum.repaired += record.repaired;
    sum.bus_errors += record.bus_errors;
    sum.forks += record.forks;
    sum.trace_hash ^= record.trace_hash;
  }
  std::printf(
      "%llu seeds: %llu failed, %llu steps, %llu remote faults, %llu prefetched, "
      "%llu from copies, %llu evicted, %llu forks, %llu slabs repaired, %llu SIGBUS, trace "
      "%016llx\n",
      number(parsed.count), number(failed), number(sum.steps), number(sum.remote_faults),
      number(sum.prefetched), number(sum.from_copies), number(sum.evicted), number(sum.forks),
      number(sum.repaired), number(sum.bus_errors), number(sum.trace_hash));
  return failed > 0 ? 1 : 0;
}
