#include "bench/evict_bench.h"

#include <fmt/format.h>

#include <atomic>

#include "base/size.h"
#include "bench/far_window.h"
#include "bench/pace.h"
#include "bench/self_check.h"

namespace farpage::bench {
namespace {

uint64_t quiet_pages(const pager::PagerOptions& pager) {
  return (pager.local_bytes >> kPageShift) * pager.low_water_percent / 100;
}

// Threads: one; pages_out() any.
class Rounds {
 public:
  Rounds(const FarWindow& window, uint64_t pages, uint64_t seed)
      : window_(window), pages_(pages), content_(seed) {}

  // The first round writes the content. It is not measured, because the nodes touch their memory
  // for the first time.
  Status warm_up(EvictResult& result) {
    window_.fill(content_, 0, pages_);
    result.dirtied_pages += pages_;
    return window_.push_out(0, pages_);
  }

  Status measure(EvictResult& result) {
    FARPAGE_TRY_VOID(dirty(result));
    const Instant start = SteadyClock::read();
    FARPAGE_TRY_VOID(window_.push_out(0, pages_));
    const Nanoseconds elapsed = SteadyClock::read() - start;
    result.round_ns.record(static_cast<uint64_t>(elapsed.count()));
    result.elapsed += elapsed;
    result.pages += pages_;
    rounds_.fetch_add(1, std::memory_order_relaxed);
    return {};
  }

  // Checks that all pages hold what was written last.
  Status read_back(EvictResult& result) {
    for (uint64_t page = 0; page < pages_; ++page) FARPAGE_TRY_VOID(check(page, result));
    return {};
  }

  uint64_t done() const { return rounds_.load(std::memory_order_relaxed); }

 private:
  Status dirty(EvictResult& result) {
    for (uint64_t page = 0; page < pages_; ++page) {
      FARPAGE_TRY_VOID(check(page, result));
      window_.words(page)[Content::mark_word(version_ + 1)] = content_.mark(page, version_ + 1);
    }
    ++version_;
    result.dirtied_pages += pages_;
    return {};
  }

  Status check(uint64_t page, EvictResult& result) const {
    if (!content_.holds(page, version_, window_.words(page)))
      return fail(ErrorCode::kConflict,
                  fmt::format("page {} did not hold what was written to it", page));
    ++result.checked_pages;
    return {};
  }

  const FarWindow& window_;
  const uint64_t pages_;
  const Content content_;
  uint32_t version_ = 0;             // writes to every page
  std::atomic<uint64_t> rounds_{0};  // measured ones
};

Status run_rounds(Rounds& rounds, const EvictOptions& options, EvictResult& result) {
  const Progress progress(options.progress, "evict, rounds",
                          {.operations = options.rounds, .time = options.duration},
                          [&rounds] { return rounds.done(); });
  Pace pace({.touches = options.rounds, .duration = options.duration}, SteadyClock::read());
  while (pace.next(SteadyClock::read())) FARPAGE_TRY_VOID(rounds.measure(result));
  return {};
}

void take_difference(EvictResult& result, const pager::PagerStats& before,
                     const pager::PagerStats& after) {
  result.evicted_written = after.evicted_written - before.evicted_written;
  result.evicted_clean = after.evicted_clean - before.evicted_clean;
  result.cancelled = after.evictions_cancelled - before.evictions_cancelled;
  result.writes = after.writes - before.writes;
  result.write_bytes = after.write_bytes - before.write_bytes;
  result.write_failures = after.write_failures - before.write_failures;
  result.batch_ns = after.evict_batch_ns.since(before.evict_batch_ns);
  result.transports = names_of_transports(after);
}

// The evictor counts a page just after its drop, so the check is repeated.
Status settle(EvictResult& result, const FarWindow& window, const pager::PagerStats& before,
              uint32_t replicas) {
  return until_settled([&] {
    take_difference(result, before, window.stats());
    return check_evict_claim({.dirtied_pages = result.dirtied_pages,
                              .measured_pages = result.pages,
                              .written_pages = result.evicted_written,
                              .write_bytes = result.write_bytes,
                              .replicas = replicas});
  });
}

Status evict_all(const FarWindow& window, const EvictOptions& options,
                 const pager::PagerOptions& pager, EvictResult& result) {
  const pager::PagerStats before = window.stats();
  Rounds rounds(window, dirty_pages(options, pager), options.seed);
  FARPAGE_TRY_VOID(rounds.warm_up(result));
  FARPAGE_TRY_VOID(run_rounds(rounds, options, result));
  FARPAGE_TRY_VOID(settle(result, window, before, pager.replicas));
  return rounds.read_back(result);
}

}  // namespace

uint64_t dirty_pages(const EvictOptions& options, const pager::PagerOptions& pager) {
  return options.bytes == 0 ? quiet_pages(pager) : options.bytes >> kPageShift;
}

Status validate(const EvictOptions& options, const pager::PagerOptions& pager) {
  const auto invalid = [](std::string text) { return fail(ErrorCode::kInvalid, std::move(text)); };
  FARPAGE_TRY_VOID(validate_length(options.duration, options.rounds));
  const uint64_t pages = dirty_pages(options, pager);
  if (pages < 1) return invalid("--size: at least one page");
  if (pages > quiet_pages(pager))
    return invalid(
        fmt::format("--size: all of it must be dirty here at once: with --local {} and "
                    "--low-water {} at most {}",
                    format_size(pager.local_bytes), pager.low_water_percent,
                    format_size(quiet_pages(pager) << kPageShift)));
  return {};
}

uint64_t evict_bytes(const EvictOptions& options, const pager::PagerOptions& pager) {
  const uint64_t bytes = dirty_pages(options, pager) << kPageShift;
  return (bytes / pager.slab_bytes + 2) * pager.slab_bytes;
}

Result<EvictResult> measure_evict(const EvictOptions& options, const pager::PagerOptions& pager,
                                  coordinator::Client& client,
                                  std::vector<std::unique_ptr<rdma::Transport>>& transports) {
  FARPAGE_TRY_VOID(validate(options, pager));
  EvictResult result;
  rdma::Transport* transport = nullptr;
  {
    FARPAGE_TRY(window, FarWindow::create(dirty_pages(options, pager), pager, client, transports));
    FARPAGE_TRY_VOID(evict_all(window, options, pager, result));
    transport = connected_transport(window.stats(), transports);
  }
  if (transport == nullptr)
    return fail(ErrorCode::kConflict, "no numbers for this run: the pager has no connection");
  FARPAGE_TRY(
      raw, measure_raw_rate(
               {.operation = rdma::OperationKind::kWrite, .pin = options.pin, .seed = options.seed},
               pager, *transport, client));
  result.raw = raw;
  return result;
}

Report evict_report(const EvictOptions& options, const pager::PagerOptions& pager,
                    const EvictResult& result) {
  const uint64_t round_bytes = dirty_pages(options, pager) << kPageShift;
  const Throughput eviction{.name = fmt::format("eviction, {}", result.transports),
                            .bytes = kPageBytes,
                            .operations = result.pages,
                            .elapsed = result.elapsed};
  Report report;
  report.benchmark = "evict";
  report.configuration = {
      {"Transport", result.transports},
      {"Memory", fmt::format("{} dirtied in each round, {} local, {} slabs, {} replica(s)",
                             format_size(round_bytes), format_size(pager.local_bytes),
                             format_size(pager.slab_bytes), pager.replicas)},
      {"Clock", "from the hint until every page was acknowledged and dropped"},
      {"Raw WRITE", "one channel, the best of several sizes and depths"},
      {"Content", "every page read back and checked after each round"}};
  report.rows = {{"round", round_bytes, result.round_ns},
                 {"batch of the evictor, warm-up incl.", 0, result.batch_ns}};
  report.throughputs = {eviction, result.raw.best};
  report.figures = {
      {"evicted_pages_per_s", eviction.per_second()},
      {"evicted_MB_per_s", eviction.mb_per_second()},
      {"raw_write_MB_per_s", result.raw.best.mb_per_second()},
      {"evicted_to_raw_percent", eviction.mb_per_second() / result.raw.best.mb_per_second() * 100}};
  report.counts = {{"rounds", result.round_ns.count()},
                   {"pages", result.pages},
                   {"dirtied_pages", result.dirtied_pages},
                   {"evicted_written", result.evicted_written},
                   {"evicted_clean", result.evicted_clean},
                   {"cancelled", result.cancelled},
                   {"writes", result.writes},
                   {"write_bytes", result.write_bytes},
                   {"write_failures", result.write_failures},
                   {"checked_pages", result.checked_pages}};
  return report;
}

}  // namespace farpage::bench
