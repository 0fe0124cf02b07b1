#include "cli/flush_cost.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/cpus.h"
#include "base/mapping.h"
#include "base/strong.h"

namespace farpage::cli {
namespace {

constexpr size_t kPages = 64;
constexpr Milliseconds kPatience{50};

// The slowest of the fastest `percent` of drops.
Result<Nanoseconds> drop_time(size_t percent) {
  FARPAGE_TRY(pages, Mapping::anonymous(kPages * kPageBytes));
  if (::madvise(pages.data(), pages.size(), MADV_NOHUGEPAGE) != 0) return fail_errno("madvise");
  const std::span<std::byte> bytes = pages.bytes();
  for (size_t at = 0; at < bytes.size(); at += kPageBytes) bytes[at] = std::byte{1};
  std::array<Nanoseconds, kPages> times{};
  for (size_t i = 0; i < kPages; ++i) {
    const Instant since = SteadyClock::read();
    if (::madvise(&bytes[i * kPageBytes], kPageBytes, MADV_DONTNEED) != 0)
      return fail_errno("madvise");
    times.at(i) = SteadyClock::read() - since;
  }
  std::ranges::sort(times);
  return times.at(kPages * percent / 100);
}

// A process that computes on one CPU, until it is killed.
class BusyCpu {
 public:
  explicit BusyCpu(pid_t pid) : pid_(pid) {}
  BusyCpu(BusyCpu&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  BusyCpu(const BusyCpu&) = delete;
  BusyCpu& operator=(const BusyCpu&) = delete;
  BusyCpu& operator=(BusyCpu&&) = delete;
  ~BusyCpu() {
    if (pid_ < 0) return;
    (void)::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  // Returns when it computes.
  static Result<BusyCpu> start(int cpu) {
    FARPAGE_TRY(file, create_memfd("farpage-flush-cost", kPageBytes));
    FARPAGE_TRY(memory, Mapping::shared(file.get(), kPageBytes));
    auto* const turns = new (memory.data()) std::atomic<uint64_t>(0);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) return fail_errno("fork");
    if (pid == 0) {
      (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent || !run_on(cpu)) ::_exit(1);
      while (true) turns->fetch_add(1, std::memory_order_relaxed);
    }
    BusyCpu busy(pid);
    const Instant deadline = SteadyClock::read() + kPatience;
    while (turns->load(std::memory_order_relaxed) == 0) {
      if (SteadyClock::read() > deadline)
        return fail(ErrorCode::kTimedOut,
                    "a process on CPU " + std::to_string(cpu) + " gets no time");
      std::this_thread::yield();
    }
    return busy;
  }

 private:
  pid_t pid_;
};

Result<FlushCost> measure_on(int cpu, int other) {
  if (!run_on(cpu)) return fail(ErrorCode::kUnavailable, "no move to CPU " + std::to_string(cpu));
  // Other programs may compute on the other CPU now and then.
  FARPAGE_TRY(alone, drop_time(10));
  FARPAGE_TRY(busy, BusyCpu::start(other));
  FARPAGE_TRY(beside, drop_time(50));
  return FlushCost{alone, beside};
}

}  // namespace

Result<std::optional<FlushCost>> measure_flush_cost() {
  const std::vector<int> cpus = allowed_cpus();
  if (cpus.size() < 2) return std::nullopt;
  const Result<FlushCost> cost = measure_on(cpus[0], cpus[1]);
  (void)run_on(cpus);
  if (!cost) return tl::unexpected(cost.error());
  return *cost;
}

}  // namespace farpage::cli
