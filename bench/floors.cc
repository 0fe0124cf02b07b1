#include "bench/floors.h"

#include <poll.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
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

// Answers missing faults of a window with one page. Threads: one on each CPU.
class LocalHandlers {
 public:
  LocalHandlers(uffd::AddressSpace& space, std::span<const std::byte> source, const Doorbell& stop)
      : space_(space), source_(source), stop_(stop) {
    for (uint32_t cpu = 0; cpu < usable_cpu_count(); ++cpu)
      threads_.emplace_back([this, cpu] {
        pin_this_thread(cpu);
        serve();
      });
  }
  ~LocalHandlers() {
    stopping_.store(true, std::memory_order_release);
    stop_.ring();
  }

 private:
  void serve() {
    while (!stopping_.load(std::memory_order_acquire)) {
      std::array<pollfd, 2> polls{pollfd{space_.event_descriptor(), POLLIN, 0},
                                  pollfd{stop_.fd(), POLLIN, 0}};
      (void)::poll(polls.data(), polls.size(), -1);
      std::array<uffd::Event, 16> events;
      const size_t count = space_.read_events(events);
      for (const uffd::Event& event : std::span(events).first(count))
        if (const auto* fault = std::get_if<uffd::Fault>(&event))
          (void)space_.install(fault->page, source_, uffd::Protection::kWriteProtected);
    }
  }

  uffd::AddressSpace& space_;
  const std::span<const std::byte> source_;
  const Doorbell& stop_;
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> threads_;
};

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

Result<Histogram> measure_local_userfault(const FloorOptions& options) {
  FARPAGE_TRY(space, uffd::create_own_window(options.pages));
  FARPAGE_TRY(source, Mapping::anonymous(kPageBytes, true));
  FARPAGE_TRY(stop, Doorbell::create());
  const Content content(options.seed);
  content.fill(0, std::span<uint64_t, Content::kWords>(reinterpret_cast<uint64_t*>(source.data()),
                                                       Content::kWords));
  for (uint64_t page = 0; page < options.pages; ++page)
    (void)space->install(PageIndex{page}, source.bytes(), uffd::Protection::kWritable);
  const uffd::PageRun all{PageIndex{0}, static_cast<uint32_t>(options.pages)};
  uffd::DropResult dropped;
  FARPAGE_TRY_VOID(space->drop({&all, 1}, {&dropped, 1}));
  if (dropped.sys_errno != 0) return fail_errno("dropping the window", dropped.sys_errno);

  const LocalHandlers handlers(*space, source.bytes(), stop);
  uint64_t wrong = 0;
  Histogram histogram = on_touching_thread(options, [&](uint64_t page) {
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
