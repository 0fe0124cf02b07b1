#include "bench/scan_bench.h"

#include <fmt/format.h>

#include <barrier>
#include <optional>
#include <thread>

#include "base/size.h"
#include "bench/far_window.h"
#include "bench/fault_bench.h"
#include "bench/self_check.h"
#include "bench/touch.h"
#include "bench/touch_order.h"

namespace farpage::bench {
namespace {

// Threads: one reads the pages; results are read after it has ended, pages() at any time.
class Walker {
 public:
  Walker(const FarWindow& window, const Content& content, PageShare share)
      : window_(window), content_(content), share_(share) {}

  void walk() {
    for (uint64_t page = share_.first; page < share_.first + share_.pages; ++page) {
      const auto words = window_.words(page);
      const size_t word = page % Content::kWords;
      touch_ns_.record(timed_load(&words[word]));
      if (content_.holds_words(page * Content::kWords + word, words.subspan(word, 1))) continue;
      wrong_page_ = page;
      return;
    }
  }

  uint64_t pages() const { return touch_ns_.count(); }
  const Histogram& touch_ns() const { return touch_ns_; }
  std::optional<uint64_t> wrong_page() const { return wrong_page_; }

 private:
  const FarWindow& window_;
  const Content& content_;
  const PageShare share_;
  Histogram touch_ns_;
  std::optional<uint64_t> wrong_page_;
};

using Walkers = std::vector<std::unique_ptr<Walker>>;

uint64_t walked_pages(const Walkers& walkers) {
  uint64_t pages = 0;
  for (const auto& walker : walkers) pages += walker->pages();
  return pages;
}

Nanoseconds walk_all(const Walkers& walkers, const ScanOptions& options) {
  std::barrier together(static_cast<ptrdiff_t>(walkers.size() + 1));
  std::vector<std::jthread> threads;
  for (uint32_t i = 0; i < walkers.size(); ++i)
    threads.emplace_back([&together, &walker = *walkers[i], pin = options.pin, i] {
      if (pin) pin_this_thread(i);
      together.arrive_and_wait();
      walker.walk();
    });
  const Progress progress(options.progress, "scan", {.operations = pages_of(options.bytes)},
                          [&walkers] { return walked_pages(walkers); });
  const Instant start = SteadyClock::read();
  together.arrive_and_wait();
  for (std::jthread& thread : threads) thread.join();
  return SteadyClock::read() - start;
}

void take_difference(ScanResult& result, const pager::PagerStats& before,
                     const pager::PagerStats& after) {
  result.reads = after.reads - before.reads;
  result.read_bytes = after.read_bytes - before.read_bytes;
  result.prefetched_pages = after.prefetch_pages - before.prefetch_pages;
  result.rescued_faults = after.faults_rescued - before.faults_rescued;
  result.retries = after.retries - before.retries;
  result.evicted_clean = after.evicted_clean - before.evicted_clean;
  result.transports = names_of_transports(after);
}

// All pages were remote, so all of them must have been fetched.
Status check_result(const ScanResult& result) {
  return check_fault_claim({.measured_faults = result.pages,
                            .reads = result.reads,
                            .read_bytes = result.read_bytes,
                            .prefetched_pages = result.prefetched_pages,
                            .rescued_faults = result.rescued_faults});
}

// Workers count just after they wake the thread, so the check is repeated.
Status settle(ScanResult& result, const FarWindow& window, const pager::PagerStats& before) {
  return until_settled([&] {
    take_difference(result, before, window.stats());
    return check_result(result);
  });
}

Status walk_through(const FarWindow& window, const ScanOptions& options, ScanResult& result) {
  const Content content(options.seed);
  const uint64_t pages = pages_of(options.bytes);
  window.fill(content, 0, pages);
  FARPAGE_TRY_VOID(window.push_out(0, pages));
  Walkers walkers;
  for (uint32_t i = 0; i < options.threads; ++i)
    walkers.push_back(
        std::make_unique<Walker>(window, content, share_of(pages, i, options.threads)));
  const pager::PagerStats before = window.stats();
  result.elapsed = walk_all(walkers, options);
  for (const auto& walker : walkers) {
    if (const auto page = walker->wrong_page())
      return fail(ErrorCode::kConflict,
                  fmt::format("page {} did not hold what was written to it", *page));
    result.touch_ns.merge(walker->touch_ns());
  }
  result.pages = result.touch_ns.count();
  return settle(result, window, before);
}

}  // namespace

Status validate(const ScanOptions& options) {
  const auto invalid = [](std::string text) { return fail(ErrorCode::kInvalid, std::move(text)); };
  if (options.threads < 1 || options.threads > kMaxThreads)
    return invalid(fmt::format("--threads: 1 to {}", kMaxThreads));
  if (options.bytes > kMaxBytes || pages_of(options.bytes) < options.threads)
    return invalid("--size: from one page for each thread to 1T");
  return {};
}

uint64_t scan_bytes(const ScanOptions& options, const pager::PagerOptions& pager) {
  const uint64_t slabs = (options.bytes + pager.slab_bytes - 1) / pager.slab_bytes;
  return (slabs + 1) * pager.slab_bytes;
}

Result<ScanResult> measure_scan(const ScanOptions& options, const pager::PagerOptions& pager,
                                coordinator::Client& client,
                                std::vector<std::unique_ptr<rdma::Transport>>& transports) {
  FARPAGE_TRY_VOID(validate(options));
  ScanResult result;
  rdma::Transport* transport = nullptr;
  {
    FARPAGE_TRY(window, FarWindow::create(pages_of(options.bytes), pager, client, transports));
    FARPAGE_TRY_VOID(walk_through(window, options, result));
    transport = connected_transport(window.stats(), transports);
  }
  if (transport == nullptr)
    return fail(ErrorCode::kConflict, "no numbers for this run: the pager has no connection");
  FARPAGE_TRY(
      raw, measure_raw_rate({.pin = options.pin, .seed = options.seed}, pager, *transport, client));
  result.raw = raw;
  return result;
}

Report scan_report(const ScanOptions& options, const pager::PagerOptions& pager,
                   const ScanResult& result) {
  const Throughput walk{.name = fmt::format("scan, {}", result.transports),
                        .bytes = kPageBytes,
                        .operations = result.pages,
                        .elapsed = result.elapsed};
  Report report;
  report.benchmark = "scan";
  report.configuration = {
      {"Transport", result.transports},
      {"Memory", fmt::format("{} walked through, {} local, {} slabs, {} replica(s)",
                             format_size(options.bytes), format_size(pager.local_bytes),
                             format_size(pager.slab_bytes), pager.replicas)},
      {"Walk", fmt::format("once, in order, {} thread(s){}", options.threads,
                           options.pin ? " pinned" : "")},
      {"Prefetch",
       pager.prefetch_depth == 0 ? "off" : fmt::format("{} pages", pager.prefetch_depth)},
      {"Raw READ", "one channel, the best of several sizes and depths"},
      {"Content", "a word of each page checked on the way, in both"}};
  report.rows.push_back({"touch of a page, in order", kPageBytes, result.touch_ns});
  report.throughputs = {walk, result.raw.best};
  report.figures = {
      {"scan_MB_per_s", walk.mb_per_second()},
      {"raw_read_MB_per_s", result.raw.best.mb_per_second()},
      {"scan_to_raw_percent", walk.mb_per_second() / result.raw.best.mb_per_second() * 100}};
  report.counts = {{"pages", result.pages},
                   {"reads", result.reads},
                   {"read_bytes", result.read_bytes},
                   {"prefetched_pages", result.prefetched_pages},
                   {"rescued_faults", result.rescued_faults},
                   {"evicted_clean", result.evicted_clean},
                   {"retries", result.retries}};
  return report;
}

}  // namespace farpage::bench
