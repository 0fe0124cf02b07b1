// random_touch: the same workload for every far-memory system of the comparison.
//
//   random_touch BYTES THREADS WRITE_PERCENT TIMED_TOUCHES SECONDS [SEED]
//
// With RANDOM_TOUCH_REGION="COORDINATOR TRANSPORT LOCAL_BYTES" in its environment, the memory is a
// region of the library, whose SIGBUS handler resolves the faults. Otherwise it is anonymous
// memory.
//
// Fills BYTES of it and times the first touch of each page. Then THREADS threads touch random
// pages, each in a share of its own: first TIMED_TOUCHES touches, each timed and classified by
// whether the page was present (mincore(2)); then untimed touches for SECONDS, for the rate. Every
// touched page is checked. Half of each page is zeros, so that a compressing swap device gets
// realistic pages. Prints one JSON object; status 1 when a page has wrong content.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "base/histogram.h"
#include "bench/content.h"
#include "bench/touch.h"
#include "bench/touch_order.h"
#include "farpage/region.h"

namespace {

using farpage::Histogram;
using farpage::Instant;
using farpage::kPageBytes;
using farpage::SteadyClock;
using farpage::bench::Content;

constexpr size_t kWords = Content::kWords;
constexpr size_t kFilledWords = kWords / 2;
constexpr uint32_t kMaxThreads = 64;

struct Settings {
  uint64_t pages = 0;
  uint32_t threads = 1;
  uint64_t write_percent = 0;
  uint64_t timed_touches = 0;
  farpage::Nanoseconds time{0};
  uint64_t seed = 1;
};

struct Memory {
  uint64_t* words = nullptr;
  std::optional<farpage::Region> region = std::nullopt;  // owns the memory, if any

  std::span<uint64_t, kWords> page(uint64_t index) const {
    return std::span<uint64_t, kWords>(words + index * kWords, kWords);
  }
};

// Threads: one touches; read the results after it ended.
class Toucher {
 public:
  Toucher(const Settings& settings, const Memory& memory, const Content& content, uint32_t index)
      : settings_(settings),
        memory_(memory),
        content_(content),
        share_(farpage::bench::share_of(settings.pages, index, settings.threads)),
        versions_(share_.pages),
        random_(settings.seed * 1000 + index) {}

  void fill() {
    for (uint64_t i = 0; i < share_.pages; ++i) {
      const auto words = memory_.page(share_.first + i);
      first_touch_ns_.record(farpage::bench::timed_store(&words[kMark], 0));
      content_.fill_words((share_.first + i) * kWords, words.first(kFilledWords));
    }
  }
  void touch_timed() {
    for (uint64_t i = 0; i < settings_.timed_touches / settings_.threads; ++i) touch(true);
  }
  void touch_until(Instant end) {
    // Reads the clock only every 64 touches, to keep it out of the rate.
    while (SteadyClock::read() < end)
      for (int i = 0; i < 64; ++i, ++touches_) touch(false);
  }

  const Histogram& first_touch_ns() const { return first_touch_ns_; }
  const Histogram& away_ns() const { return away_ns_; }
  uint64_t touches() const { return touches_; }
  uint64_t wrong_pages() const { return wrong_pages_; }

 private:
  static constexpr size_t kMark = kWords - 1;  // the word that writes change

  void touch(bool timed) {
    const uint64_t offset = random_.below(share_.pages);
    const bool write = random_.below(100) < settings_.write_percent;
    const auto words = memory_.page(share_.first + offset);
    uint64_t& version = versions_[offset];
    if (timed) {
      const bool present = farpage::bench::is_present(words.data());
      const uint64_t ns = write ? farpage::bench::timed_store(&words[kMark], version + 1)
                                : farpage::bench::timed_load(words.data());
      if (!present) away_ns_.record(ns);
    } else if (write) {
      words[kMark] = version + 1;
    }
    if (write) ++version;
    // Two words suffice to detect a lost write, an old version and a wrong page.
    const std::span<const uint64_t> first = words.first(1);
    if (!content_.holds_words((share_.first + offset) * kWords, first) || words[kMark] != version)
      ++wrong_pages_;
  }

  const Settings& settings_;
  const Memory& memory_;
  const Content& content_;
  const farpage::bench::PageShare share_;
  std::vector<uint64_t> versions_;
  farpage::bench::Random random_;
  Histogram first_touch_ns_;
  Histogram away_ns_;
  uint64_t touches_ = 0;
  uint64_t wrong_pages_ = 0;
};

uint64_t major_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_majflt);
}

std::optional<Memory> anonymous_memory(uint64_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("random_touch: mmap");
    return std::nullopt;
  }
  (void)::madvise(memory, bytes, MADV_NOHUGEPAGE);
  return Memory{static_cast<uint64_t*>(memory)};
}

std::optional<Memory> region_memory(uint64_t bytes, const std::string& region) {
  farpage::RegionOptions options;
  options.bytes = bytes;
  options.resolve_in_handler = true;
  std::istringstream words(region);
  words >> options.coordinator >> options.transport >> options.local_bytes;
  if (!words) {
    fmt::print(stderr, "random_touch: RANDOM_TOUCH_REGION='{}': three words are needed\n", region);
    return std::nullopt;
  }
  auto created = farpage::Region::create(options);
  if (!created) {
    fmt::print(stderr, "random_touch: RANDOM_TOUCH_REGION='{}': {}\n", region,
               created.error().message);
    return std::nullopt;
  }
  Memory memory{.region = std::move(*created)};
  memory.words = reinterpret_cast<uint64_t*>(memory.region->bytes().data());
  return memory;
}

int run(const Settings& settings) {
  const char* region = std::getenv("RANDOM_TOUCH_REGION");
  const uint64_t bytes = settings.pages * kPageBytes;
  const std::optional<Memory> memory =
      region == nullptr ? anonymous_memory(bytes) : region_memory(bytes, region);
  if (!memory) return 2;
  const Memory& pages = *memory;
  const Content content(settings.seed);
  std::vector<std::unique_ptr<Toucher>> touchers;
  for (uint32_t i = 0; i < settings.threads; ++i)
    touchers.push_back(std::make_unique<Toucher>(settings, pages, content, i));

  std::barrier together(static_cast<ptrdiff_t>(settings.threads));
  std::atomic<int64_t> started{0};
  {
    std::vector<std::jthread> threads;
    for (auto& toucher : touchers)
      threads.emplace_back([&, &toucher = *toucher] {
        toucher.fill();
        together.arrive_and_wait();
        toucher.touch_timed();
        together.arrive_and_wait();
        int64_t none = 0;
        (void)started.compare_exchange_strong(none, SteadyClock::read().count());
        toucher.touch_until(Instant{started.load()} + settings.time);
      });
  }
  const double seconds =
      static_cast<double>((SteadyClock::read() - Instant{started.load()}).count()) / 1e9;

  Histogram first_touch_ns, away_ns;
  uint64_t touches = 0, wrong = 0;
  for (const auto& toucher : touchers) {
    first_touch_ns.merge(toucher->first_touch_ns());
    away_ns.merge(toucher->away_ns());
    touches += toucher->touches();
    wrong += toucher->wrong_pages();
  }
  const auto us = [](uint64_t ns) { return static_cast<double>(ns) / 1000.0; };
  fmt::print(
      "{{\"accesses_per_s\": {:.0f}, \"first_touch_mean_us\": {:.2f}, \"timed_faults\": {}, "
      "\"fault_p50_us\": {:.2f}, "
      "\"fault_p99_us\": {:.2f}, \"fault_p999_us\": {:.2f}, \"touches\": {}, \"major_faults\": {}, "
      "\"wrong_pages\": {}}}\n",
      static_cast<double>(touches) / seconds, first_touch_ns.mean_ns() / 1000.0, away_ns.count(),
      us(away_ns.percentile_ns(50)), us(away_ns.percentile_ns(99)), us(away_ns.percentile_ns(99.9)),
      touches, major_faults(), wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) {
    std::fputs(
        "usage: random_touch BYTES THREADS WRITE_PERCENT TIMED_TOUCHES SECONDS [SEED]\n"
        "  random_touch 268435456 1 50 20000 5\n",
        stderr);
    return 2;
  }
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  const Settings settings{.pages = number(1) / kPageBytes,
                          .threads = static_cast<uint32_t>(number(2)),
                          .write_percent = number(3),
                          .timed_touches = number(4),
                          .time = std::chrono::seconds(number(5)),
                          .seed = argc > 6 ? number(6) : 1};
  if (settings.threads < 1 || settings.threads > kMaxThreads || settings.pages < settings.threads ||
      settings.write_percent > 100) {
    std::fputs("random_touch: THREADS 1 to 64, a page for each, WRITE_PERCENT 0 to 100\n", stderr);
    return 2;
  }
  return run(settings);
}
