#include "bench/fault_bench.h"

#include <fmt/format.h>

#include <barrier>
#include <thread>
#include <utility>

#include "base/size.h"
#include "bench/pace.h"
#include "bench/raw_rate.h"
#include "bench/self_check.h"
#include "bench/touch.h"

namespace farpage::bench {
namespace {

// The first faults of a thread run with cold caches.
constexpr uint64_t kWarmUpPages = 500;
// In local budgets: the touches until the evictor is in its steady state, and the pages that were
// resident after the filling have been written back. Before that each eviction takes a new frame
// of the node, and each fault one that no cache holds.
constexpr uint64_t kWarmUpBudgets = 2;
constexpr uint64_t kMaxWarmUpTouches = 2'000'000;
constexpr int kMaxPushRounds = 10;

uint64_t room_pages(const pager::PagerOptions& pager) {
  return pages_of(pager.local_bytes) * pager.high_water_percent / 100;
}

// Other pages, whose faults evict the measured ones.
uint64_t ballast_pages(const FaultOptions& options, const pager::PagerOptions& pager) {
  return options.evict ? 0 : pages_of(pager.local_bytes) * 5 / 4;
}

struct ThreadPlan {
  uint64_t warm_up = 0;
  PaceOptions pace;
};

ThreadPlan plan_of(const FaultOptions& options, const pager::PagerOptions& pager, uint32_t index) {
  const uint64_t budget_touches = kWarmUpBudgets * pages_of(pager.local_bytes) / options.threads;
  return {.warm_up = options.evict ? std::min(budget_touches, kMaxWarmUpTouches) : kWarmUpPages,
          .pace = {.touches = share_of(options.iterations, index, options.threads).pages,
                   .duration = options.duration,
                   .rate_per_s = options.rate_per_s}};
}

// Threads: one touches; the results are read after it has ended.
class Toucher {
 public:
  Toucher(const FarWindow& window, const Content& content, const FaultOptions& options,
          ThreadPlan plan, uint32_t index)
      : window_(window),
        content_(content),
        options_(options),
        plan_(plan),
        share_(share_of(pages_of(options.bytes), index, options.threads)),
        versions_(share_.pages),
        coin_(~(options.seed + index)),
        order_(options.pattern, share_, options.seed + index) {
    if (!options.evict)
      once_ = distinct_pages(options.pattern, share_, plan.warm_up + plan.pace.touches,
                             options.seed + index);
    if (options.record) record_filling();
  }

  void warm_up() {
    for (uint64_t i = 0; i < plan_.warm_up && !wrong_page_; ++i) touch(next(), Nanoseconds(0));
    if (trace_) trace_->end_warm_up();
  }
  void measure() {
    measuring_ = true;
    Pace pace(plan_.pace, SteadyClock::read());
    while (!wrong_page_) {
      const auto intended = pace.next(SteadyClock::read());
      if (!intended) break;
      Nanoseconds late{0};
      if (options_.rate_per_s > 0) {
        wait_until(*intended);
        late = SteadyClock::read() - *intended;
      } else if (options_.compute.count() > 0) {
        compute_until(*intended + options_.compute);
      }
      touch(next(), late);
    }
    late_touches_ = pace.late();
    missed_touches_ = pace.missed();
  }

  // Any thread, also during the measurement.
  uint64_t touches() const { return away_ns_.count() + present_ns_.count(); }
  const Histogram& away_ns() const { return away_ns_; }
  const Histogram& present_ns() const { return present_ns_; }
  const Histogram& touch_ns() const { return touch_ns_; }
  uint64_t late_touches() const { return late_touches_; }
  uint64_t missed_touches() const { return missed_touches_; }
  std::optional<uint64_t> wrong_page() const { return wrong_page_; }
  std::optional<pager::AccessTrace> take_trace() { return std::exchange(trace_, std::nullopt); }

 private:
  uint64_t next() { return once_.empty() ? order_.next() : once_[position_++]; }

  bool next_is_write() {
    if (options_.access == Access::kMixed) return (coin_.next() & 1) != 0;
    return options_.access == Access::kWrite;
  }

  void record_filling() {
    trace_.emplace(share_.pages);
    for (uint32_t page = 0; page < share_.pages; ++page)
      trace_->add({page, pager::AccessKind::kWrite});
  }

  // `late`: the delay behind the intended start.
  void touch(uint64_t page, Nanoseconds late) {
    const auto words = window_.words(page);
    uint32_t& version = versions_[page - share_.first];
    const bool write = next_is_write();
    if (trace_)
      trace_->add({static_cast<uint32_t>(page),
                   write ? pager::AccessKind::kWrite : pager::AccessKind::kRead});
    const uint32_t written = version + 1;
    const uint64_t mark = write ? content_.mark(page, written) : 0;
    // An absent page-table entry is not enough: the kernel flushes the TLBs after a whole vector of
    // pages, and until then a page can be read without a fault.
    const bool away = !is_present(words.data()) && window_.is_away(page);
    const uint64_t ns =
        write ? timed_store(&words[Content::mark_word(written)], mark) : timed_load(words.data());
    if (write) version = written;
    if (measuring_) {
      (away ? away_ns_ : present_ns_).record(ns + static_cast<uint64_t>(late.count()));
      if (away) touch_ns_.record(ns);
    }
    if (!content_.holds(page, version, words)) wrong_page_ = page;
  }

  const FarWindow& window_;
  const Content& content_;
  const FaultOptions& options_;
  const ThreadPlan plan_;
  const PageShare share_;
  std::vector<uint32_t> versions_;  // writes to each page of the share
  Random coin_;
  TouchOrder order_;
  std::vector<uint64_t> once_;  // without eviction: the pages in touch order
  size_t position_ = 0;
  bool measuring_ = false;
  std::optional<uint64_t> wrong_page_;
  std::optional<pager::AccessTrace> trace_;
  Histogram away_ns_;
  Histogram present_ns_;
  Histogram touch_ns_;
  uint64_t late_touches_ = 0;
  uint64_t missed_touches_ = 0;
};

// All touched memory is remote at first, and the budget has room for the touched pages.
Status push_out(const FarWindow& window, const Content& content, const FaultOptions& options,
                uint64_t ballast) {
  const uint64_t pages = pages_of(options.bytes);
  uint64_t present = pages;
  for (int round = 0; round < kMaxPushRounds && present > 0; ++round) {
    window.fill(content, pages, ballast);
    present = window.present_pages(0, pages);
  }
  if (present > 0)
    return fail(
        ErrorCode::kConflict,
        fmt::format("{} of {} pages could not be evicted (is the evictor stuck? See the log)",
                    present, pages));
  window.discard(pages, ballast);
  return {};
}

uint64_t touches_of(const std::vector<std::unique_ptr<Toucher>>& touchers) {
  uint64_t touches = 0;
  for (const auto& toucher : touchers) touches += toucher->touches();
  return touches;
}

struct Run {
  pager::PagerStats before;
  Nanoseconds elapsed{0};
};

Run touch_all(const FarWindow& window, std::vector<std::unique_ptr<Toucher>>& touchers,
              const FaultOptions& options) {
  Run run;
  std::barrier together(static_cast<ptrdiff_t>(touchers.size() + 1));
  std::vector<std::jthread> threads;
  for (uint32_t i = 0; i < touchers.size(); ++i)
    threads.emplace_back([&together, &toucher = *touchers[i], pin = options.pin, i] {
      if (pin) pin_this_thread(i);
      toucher.warm_up();
      together.arrive_and_wait();
      together.arrive_and_wait();
      toucher.measure();
    });
  together.arrive_and_wait();
  run.before = window.stats();
  const Progress progress(options.progress, "fault",
                          {.operations = options.iterations, .time = options.duration},
                          [&touchers] { return touches_of(touchers); });
  const Instant start = SteadyClock::read();
  together.arrive_and_wait();
  for (std::jthread& thread : threads) thread.join();
  run.elapsed = SteadyClock::read() - start;
  return run;
}

void take_difference(FaultResult& result, const pager::PagerStats& before,
                     const pager::PagerStats& after) {
  result.reads = after.reads - before.reads;
  result.read_bytes = after.read_bytes - before.read_bytes;
  result.prefetched_pages = after.prefetch_pages - before.prefetch_pages;
  result.retries = after.retries - before.retries;
  result.faults_write = after.faults_write - before.faults_write;
  result.faults_rescued = after.faults_rescued - before.faults_rescued;
  result.faults_waited_room = after.faults_waited_room - before.faults_waited_room;
  result.evicted_written = after.evicted_written - before.evicted_written;
  result.evicted_unchanged = after.evicted_unchanged - before.evicted_unchanged;
  result.evicted_clean = after.evicted_clean - before.evicted_clean;
  result.write_bytes = after.write_bytes - before.write_bytes;
  result.queue_ns = after.queue_ns.since(before.queue_ns);
  result.wire_ns = after.wire_ns.since(before.wire_ns);
  result.install_ns = after.install_ns.since(before.install_ns);
  result.transports = names_of_transports(after);
}

Status check_result(const FaultOptions& options, const FaultResult& result) {
  FARPAGE_TRY_VOID(check_fault_claim({.measured_faults = result.away_ns.count(),
                                      .reads = result.reads,
                                      .read_bytes = result.read_bytes,
                                      .prefetched_pages = result.prefetched_pages,
                                      .rescued_faults = result.faults_rescued}));
  const uint64_t evicted = result.evicted_written + result.evicted_unchanged + result.evicted_clean;
  if (!options.evict && evicted > 0)
    return fail(ErrorCode::kConflict,
                fmt::format("no numbers for this run: {} pages were evicted in spite of --no-evict",
                            evicted));
  return {};
}

}  // namespace

std::string_view to_string(Access access) {
  switch (access) {
    case Access::kRead:
      return "read";
    case Access::kWrite:
      return "write";
    case Access::kMixed:
      return "mixed";
  }
  return "unknown";
}

std::optional<Access> access_from(std::string_view name) {
  for (const Access access : {Access::kRead, Access::kWrite, Access::kMixed})
    if (name == to_string(access)) return access;
  return std::nullopt;
}

Status validate(const FaultOptions& options, const pager::PagerOptions& pager) {
  const auto invalid = [](std::string text) { return fail(ErrorCode::kInvalid, std::move(text)); };
  if (options.threads < 1 || options.threads > kMaxThreads)
    return invalid(fmt::format("--threads: 1 to {}", kMaxThreads));
  FARPAGE_TRY_VOID(validate_length(options.duration, options.iterations, options.threads));
  if (options.duration.count() > 0 && !options.evict)
    return invalid("--duration: not with --no-evict, which touches each page once");
  if (options.rate_per_s > kMaxRatePerSecond)
    return invalid(fmt::format("--rate: up to {}", kMaxRatePerSecond));
  if (options.compute > kMaxCompute)
    return invalid(fmt::format("--compute-us: up to {}", kMaxCompute.count()));
  if (options.rate_per_s > 0 && options.compute.count() > 0)
    return invalid("--compute-us: not with --rate, which sets the start of each touch");
  const uint64_t pages = pages_of(options.bytes);
  if (options.bytes > kMaxBytes || pages < options.threads)
    return invalid("--size: from one page for each thread to 1T");
  if (options.record && (options.threads > 1 || !options.evict))
    return invalid("--record: with one thread, and without --no-evict");
  if (options.evict) return {};
  const uint64_t touched = options.iterations + options.threads * (kWarmUpPages + 1);
  if (touched > pages)
    return invalid(
        fmt::format("--iterations: with --no-evict each page is touched once, and "
                    "--size {} has {} pages: at most {} iterations",
                    format_size(options.bytes), pages,
                    pages - std::min(pages, options.threads * (kWarmUpPages + 1))));
  if (touched > room_pages(pager))
    return invalid(fmt::format(
        "--local: with --no-evict all touched pages must stay resident: {} for {} iterations",
        format_size((touched * 100 / pager.high_water_percent + 1) << kPageShift),
        options.iterations));
  return {};
}

uint64_t window_bytes(const FaultOptions& options, const pager::PagerOptions& pager) {
  return (pages_of(options.bytes) + ballast_pages(options, pager)) << kPageShift;
}

Result<FaultResult> measure_faults(const FaultOptions& options, const pager::PagerOptions& pager,
                                   coordinator::Client& client,
                                   std::vector<std::unique_ptr<rdma::Transport>>& transports) {
  FARPAGE_TRY_VOID(validate(options, pager));
  FARPAGE_TRY(window, FarWindow::create(pages_of(window_bytes(options, pager)), pager, client,
                                        transports, options.faults));
  const Content content(options.seed);
  window.fill(content, 0, pages_of(options.bytes));
  if (!options.evict)
    FARPAGE_TRY_VOID(push_out(window, content, options, ballast_pages(options, pager)));

  std::vector<std::unique_ptr<Toucher>> touchers;
  for (uint32_t i = 0; i < options.threads; ++i)
    touchers.push_back(
        std::make_unique<Toucher>(window, content, options, plan_of(options, pager, i), i));
  const Run run = touch_all(window, touchers, options);

  FaultResult result;
  result.elapsed = run.elapsed;
  result.faults = window.fault_mode();
  for (const auto& toucher : touchers) {
    if (const auto page = toucher->wrong_page())
      return fail(ErrorCode::kConflict,
                  fmt::format("page {} did not hold what was written to it", *page));
    result.away_ns.merge(toucher->away_ns());
    result.present_ns.merge(toucher->present_ns());
    result.touch_ns.merge(toucher->touch_ns());
    result.late_touches += toucher->late_touches();
    result.missed_touches += toucher->missed_touches();
  }
  if (options.record) result.trace = touchers.front()->take_trace();
  result.touches = result.away_ns.count() + result.present_ns.count();
  const auto check = [&] {
    take_difference(result, run.before, window.stats());
    return check_result(options, result);
  };
  FARPAGE_TRY_VOID(result.away_ns.count() > 0 ? until_settled(check) : check());
  return result;
}

}  // namespace farpage::bench
