#include "bench/floors.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "base/doorbell.h"
#include "base/mapping.h"
#include "bench/content.h"
#include "bench/touch.h"
#include "bench/touch_order.h"
#include "uffd/own_process.h"

namespace farpage::bench {
namespace {

std::vector<uint64_t> random_order(const FloorOptions& options) {
  return distinct_pages(Pattern::kRandom, {0, options.pages}, options.pages, options.seed);
}

// Times touch(page) for each page, on a thread of its own.
template <typename Touch>
Histogram on_touching_thread(const FloorOptions& options, Touch&& touch) {
  Histogram histogram;
  std::thread([&] {
    if (options.pin) pin_this_thread(0);
    for (const uint64_t page : random_order(options)) histogram.record(touch(page));
  }).join();
  return histogram;
}

volatile uint64_t* word_of(const Mapping& memory, uint64_t page) {
  return reinterpret_cast<volatile uint64_t*>(memory.data() + (page << kPageShift));
}

Result<Mapping> touched_memory(uint64_t pages) {
  FARPAGE_TRY(memory, Mapping::anonymous(pages << kPageShift));
  if (::madvise(memory.data(), memory.size(), MADV_NOHUGEPAGE) != 0 && errno != EINVAL)
    return fail_errno("madvise(NOHUGEPAGE)");
  for (uint64_t page = 0; page < pages; ++page) *word_of(memory, page) = page;
  return memory;
}

// Resolves missing faults of a window with one page. Threads: one on each CPU, or one that spins.
class HandlerThreads {
 public:
  HandlerThreads(uffd::AddressSpace& space, std::span<const std::byte> source, const Doorbell& stop,
                 bool spinning)
      : space_(space), source_(source), stop_(stop) {
    const uint32_t cpus = usable_cpu_count();
    // With --pin, the touching thread is on the first CPU: a spinning thread uses the last.
    for (uint32_t cpu = spinning ? cpus - 1 : 0; cpu < cpus; ++cpu)
      threads_.emplace_back([this, cpu, spinning] {
        pin_this_thread(cpu);
        if (spinning)
          spin();
        else
          block();
      });
  }
  ~HandlerThreads() {
    stopping_.store(true, std::memory_order_release);
    stop_.ring();
  }

 private:
  void block() {
    while (!stopping_.load(std::memory_order_acquire)) {
      std::array<pollfd, 2> polls{pollfd{space_.event_descriptor(), POLLIN, 0},
                                  pollfd{stop_.fd(), POLLIN, 0}};
      (void)::poll(polls.data(), polls.size(), -1);
      (void)serve();
    }
  }

  // Yields because the touching thread may be limited to the same CPU.
  void spin() {
    while (!stopping_.load(std::memory_order_acquire))
      if (serve() == 0) ::sched_yield();
  }

  // The number of events read.
  size_t serve() {
    std::array<uffd::Event, 16> events;
    const size_t count = space_.read_events(events);
    for (const uffd::Event& event : std::span(events).first(count))
      if (const auto* fault = std::get_if<uffd::Fault>(&event))
        (void)space_.install(fault->page, source_, uffd::Protection::kWriteProtected);
    return count;
  }

  uffd::AddressSpace& space_;
  const std::span<const std::byte> source_;
  const Doorbell& stop_;
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> threads_;
};

// The window of a touching thread, and the page that its signal handler installs.
struct SignalledWindow {
  uffd::AddressSpace* space;
  std::span<const std::byte> source;
};
// A global, because a signal handler has no other way to find it.
thread_local const SignalledWindow* signalled_window = nullptr;

bool install_signalled_page(uint64_t address) {
  if (signalled_window == nullptr) return false;
  uffd::AddressSpace& space = *signalled_window->space;
  const uint64_t base = space.address_of(PageIndex{0});
  if (address < base || address - base >= space.pages() << kPageShift) return false;
  const uffd::Outcome outcome =
      space.install(PageIndex{(address - base) >> kPageShift}, signalled_window->source,
                    uffd::Protection::kWriteProtected);
  return outcome == uffd::Outcome::kDone || outcome == uffd::Outcome::kAlreadyPresent;
}

void on_floor_sigbus(int number, siginfo_t* info, void*) {
  const int saved_errno = errno;
  // The instruction runs again and ends the process.
  if (!install_signalled_page(reinterpret_cast<uint64_t>(info->si_addr)))
    (void)::signal(number, SIG_DFL);
  errno = saved_errno;
}

// on_floor_sigbus() handles SIGBUS during the lifetime of this object.
class FloorSignal {
 public:
  FloorSignal() {
    struct sigaction action {};
    action.sa_sigaction = on_floor_sigbus;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;  // as the library's
    (void)::sigaction(SIGBUS, &action, &former_);
  }
  FloorSignal(const FloorSignal&) = delete;
  FloorSignal& operator=(const FloorSignal&) = delete;
  ~FloorSignal() { (void)::sigaction(SIGBUS, &former_, nullptr); }

 private:
  struct sigaction former_ {};
};

// A window with page tables and without pages.
Result<std::unique_ptr<uffd::AddressSpace>> emptied_window(uint64_t pages,
                                                           std::span<const std::byte> source,
                                                           LocalHandler handler) {
  FARPAGE_TRY(space, handler == LocalHandler::kSignal ? uffd::create_own_sigbus_window(pages)
                                                      : uffd::create_own_window(pages));
  for (uint64_t page = 0; page < pages; ++page)
    (void)space->install(PageIndex{page}, source, uffd::Protection::kWritable);
  const uffd::PageRun all{PageIndex{0}, static_cast<uint32_t>(pages)};
  uffd::DropResult dropped;
  FARPAGE_TRY_VOID(space->drop({&all, 1}, {&dropped, 1}, Seconds(1)));
  if (dropped.sys_errno != 0) return fail_errno("dropping the window", dropped.sys_errno);
  return space;
}

}  // namespace

Result<Histogram> measure_present_page(const FloorOptions& options) {
  FARPAGE_TRY(memory, touched_memory(options.pages));
  return on_touching_thread(options,
                            [&](uint64_t page) { return timed_load(word_of(memory, page)); });
}

Result<Histogram> measure_zero_fault(const FloorOptions& options) {
  FARPAGE_TRY(memory, touched_memory(options.pages));
  if (::madvise(memory.data(), memory.size(), MADV_DONTNEED) != 0)
    return fail_errno("madvise(DONTNEED)");
  return on_touching_thread(
      options, [&](uint64_t page) { return timed_store(word_of(memory, page), page); });
}

Result<Histogram> measure_local_userfault(const FloorOptions& options, LocalHandler handler) {
  FARPAGE_TRY(source, Mapping::anonymous(kPageBytes, true));
  FARPAGE_TRY(stop, Doorbell::create());
  const Content content(options.seed);
  content.fill(0, std::span<uint64_t, Content::kWords>(reinterpret_cast<uint64_t*>(source.data()),
                                                       Content::kWords));
  FARPAGE_TRY(space, emptied_window(options.pages, source.bytes(), handler));

  std::optional<HandlerThreads> handlers;
  std::optional<FloorSignal> catching;
  if (handler == LocalHandler::kSignal)
    catching.emplace();
  else
    handlers.emplace(*space, source.bytes(), stop, handler == LocalHandler::kSpinning);
  const SignalledWindow signalled{space.get(), source.bytes()};
  uint64_t wrong = 0;
  Histogram histogram = on_touching_thread(options, [&](uint64_t page) {
    signalled_window = &signalled;  // thread-local: this runs on the touching thread
    auto* words = reinterpret_cast<uint64_t*>(space->address_of(PageIndex{page}));
    const uint64_t ns = timed_load(words);
    if (!content.holds(0, 0, std::span<const uint64_t, Content::kWords>(words, Content::kWords)))
      ++wrong;
    return ns;
  });
  if (wrong > 0)
    return fail(ErrorCode::kConflict, std::to_string(wrong) + " pages did not hold the source");
  return histogram;
}

}  // namespace farpage::bench
