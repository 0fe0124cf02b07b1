#include "pager/target_pager.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/size.h"
#include "pager/fault/discard.h"
#include "pager/fault/mapping_changes.h"
#include "pager/fault/pull_in.h"
#include "pager/settle.h"

namespace farpage::pager {
namespace {

// With more pinned than the low-water mark the evictor would never stop.
uint64_t pin_percent(const PagerOptions& options) {
  return std::min(kPinPercent, options.low_water_percent);
}
Budget::Marks marks_of(const PagerOptions& options) {
  return {.high = options.high_water_percent,
          .low = options.low_water_percent,
          .pressing = pressing_percent(options),
          .adaptive = options.adaptive_water_marks,
          .most_room = options.most_room_pages};
}
constexpr uint64_t kMiBShift = 20 - kPageShift;  // of pages
uint64_t pin_limit_pages(const PagerOptions& options, uint64_t budget_pages) {
  return budget_pages * pin_percent(options) / 100;
}

}  // namespace

Result<std::unique_ptr<TargetPager>> TargetPager::create(EngineThreads& engine,
                                                         const TargetOptions& options,
                                                         std::unique_ptr<uffd::AddressSpace>& space,
                                                         std::unique_ptr<ProcessImage>& image,
                                                         OnChild on_child, TargetRecord record) {
  FARPAGE_TRY_VOID(validate_local(options.local_bytes));
  PagerOptions complete = engine.core().options;
  complete.name = options.name;
  complete.local_bytes = options.local_bytes;
  complete.fork = options.fork;
  const uint64_t pin_limit = pin_limit_pages(complete, complete.local_bytes >> kPageShift);
  const Succession& succession = engine.core().succession;
  const std::string pins_name = Succession::pins_name(options.number);
  const auto pinned = succession.used_parts(pins_name);
  FARPAGE_TRY(pin_words, succession.memory(pins_name, PinMap::memory_bytes(space->pages())));
  PinMap pins = PinMap::create(pin_limit, std::move(pin_words), pinned);
  FARPAGE_TRY(access, AccessMap::create(space->pages()));
  FARPAGE_TRY(copies, CompressedPages::create(complete.compressed.enabled ? space->pages() : 0));
  FARPAGE_TRY(shares, Mapping::anonymous(complete.workers * sizeof(WorkerShare)));
  FARPAGE_TRY(times, Mapping::anonymous(sizeof(TargetTimes)));
  FARPAGE_TRY(trends, Mapping::anonymous(sizeof(TrendDetector)));
  FARPAGE_TRY(clusters, Mapping::anonymous(sizeof(ClusterChoice)));
  FARPAGE_TRY(attention, Doorbell::create());
  FARPAGE_TRY_VOID(succession.put_target(options.number, record));
  std::unique_ptr<TargetPager> pager(new TargetPager(
      engine, options.number,
      Parts{std::move(complete), std::move(space), std::move(image), std::move(pins),
            std::move(access), std::move(copies), std::move(shares), std::move(times),
            std::move(trends), std::move(clusters), std::move(attention)},
      std::move(on_child)));
  pager->keeper_.begin(std::move(record));
  return pager;
}

TargetPager::TargetPager(EngineThreads& engine, uint64_t number, Parts parts, OnChild on_child)
    : engine_(engine),
      parts_(std::move(parts)),
      keeper_(engine.core().succession, number),
      budget_(engine.core().pressure, parts_.options.local_bytes >> kPageShift,
              marks_of(parts_.options)),
      backing_regions_(*parts_.image, parts_.options, engine.client(), engine.borrower_thread(),
                       *this, engine.core().succession, keeper_),
      target_{parts_.options,
              engine.core(),
              *parts_.space,
              *parts_.image,
              parts_.image->table(),
              budget_,
              backing_regions_,
              parts_.pins,
              parts_.access,
              parts_.copies,
              reinterpret_cast<WorkerShare*>(parts_.shares.data()),
              *reinterpret_cast<TargetTimes*>(parts_.times.data()),
              *reinterpret_cast<TrendDetector*>(parts_.trends.data()),
              *reinterpret_cast<ClusterChoice*>(parts_.clusters.data())},
      fork_in_progress_(target_, parts_.attention, std::move(on_child)) {
  target_.most_own.store(budget_.limit(), std::memory_order_relaxed);
  if (parts_.options.record_touches) target_.recorder = std::make_shared<TouchRecorder>();
  target_.on_messages = [this] { apply_messages(target_); };
  target_.on_wants_budget = [this] { parts_.attention.ring(); };
  target_.on_forked = [this](std::unique_ptr<uffd::AddressSpace> child) {
    if (target_.order != nullptr)
      fork_in_progress_.arrived_in_order(std::move(child));
    else
      fork_in_progress_.arrived(std::move(child));
  };
}

TargetPager::~TargetPager() {
  if (parts_.image) keeper_.end();  // unless it was given back
  backing_regions_.disown();        // their heartbeats read the counters
  target_.closing.store(true, std::memory_order_release);
  if (started_.load(std::memory_order_relaxed)) engine_.remove(target_);
  fork_in_progress_.adopt();  // those that the workers have read at the last moment
}

void TargetPager::take_over(uint64_t age_clock) {
  target_.age_clock.store(age_clock, std::memory_order_relaxed);
  budget_.inherit(resident_pages());
  budget_.lift_limit();
  target_.eviction.pauses.store(1, std::memory_order_relaxed);  // until begin_eviction()
}

void TargetPager::go_on_forking(std::unique_ptr<ProcessImage> snapshot, size_t children) {
  const MutexLock lock(extents_mutex_);
  forking_ = true;
  fork_in_progress_.take_over(std::move(snapshot), children);
}

bool TargetPager::is_forking() {
  const MutexLock lock(extents_mutex_);
  return forking_;
}

Status TargetPager::resume(BackingRegionList own, bool agent_ready) {
  backing_regions_.take_over(std::move(own));
  if (!settle_pages(target_)) return fail(ErrorCode::kUnavailable, "the process has ended");
  if (target_.order != nullptr && target_.order->try_begin_reading()) apply_messages(target_);
  const PageTable& table = target_.table;
  for (uint64_t page = table.next_used(0); page < table.pages();
       page = table.next_used(page + kPagesPerBlock))
    target_.note_touched(PageIndex{page});
  budget_.inherit(resident_pages());
  const bool forking = is_forking();
  if (forking || !agent_ready) budget_.lift_limit();
  target_.eviction.pauses.store((forking ? 1 : 0) + (agent_ready ? 0 : 1),
                                std::memory_order_relaxed);
  return {};
}

Status TargetPager::start() {
  FARPAGE_TRY_VOID(engine_.start(target_));
  started_.store(true, std::memory_order_release);
  return {};
}

void TargetPager::give_back(Inheritance& inheritance) {
  inheritance.space = std::move(parts_.space);
  inheritance.image = std::move(parts_.image);
}

void TargetPager::agent_ready(std::string name, uint64_t free_pages) {
  parts_.options.name = std::move(name);  // nothing is borrowed before the first eviction
  budget_.resize(budget_.used() + free_pages);
  budget_.restore_limit();
  target_.on_trial.store(true, std::memory_order_release);
  may_lack_memory_ = true;
}

void TargetPager::begin_eviction() {
  target_.on_trial.store(false, std::memory_order_release);
  engine_.evictor().resume(target_);
}

void TargetPager::discard(uffd::PageRun run) {
  target_.cold.forget(run);
  fork_in_progress_.discard(run);
}

bool TargetPager::try_discard(uffd::PageRun run) {
  target_.cold.forget(run);
  return fork_in_progress_.try_discard(run);
}

Status TargetPager::add_extent(uint64_t begin, uint64_t end) {
  {
    const MutexLock lock(extents_mutex_);
    if (forking_) return fail(ErrorCode::kConflict, "a fork is under way");
  }
  remove_extent(begin, end);  // what has gone past the shim
  // Numbers are given again: no worker holds a message that was read while they were another
  // extent's, and no page of it is left that was touched after it was discarded.
  engine_.core().event_readers.wait_until_handled();
  FARPAGE_TRY_VOID(parts_.space->add_extent(begin, end));
  for (const uffd::PageRun& run : parts_.space->runs_in(begin, end)) discard(run);
  return {};
}

// In one section: a mapping could be moved there between the steps. What has failed because of a
// change of the program's is done again.
Status TargetPager::cover(uint64_t begin, uint64_t end) {
  while (true) {
    if (may_lack_memory_) forget_missing();
    if (!may_lack_memory_) {
      const ChangingPages section(target_.order);
      // Until it is read the extents are not those of the memory that the caller has seen.
      if (!parts_.space->event_pending()) {
        Status covered = cover_now(begin, end);
        if (covered || !parts_.space->event_pending()) return covered;
      }
    }
    if (target_.gone.load(std::memory_order_acquire) ||
        target_.closing.load(std::memory_order_acquire))
      return fail(ErrorCode::kUnavailable, "the process has ended");
    ::sched_yield();
  }
}

// Of a child, once: else what it maps there would be taken for what its parent had there. In a
// section of the other kind: numbers are freed.
void TargetPager::forget_missing() {
  while (!target_.order->try_begin_reading()) ::sched_yield();
  if (const auto missing = parts_.space->extents_without_memory()) {
    for (const auto& [begin, end] : *missing) {
      for (const uffd::PageRun& run : parts_.space->runs_in(begin, end))
        (void)discard_pages(target_, run, BusyPages::kMark);
      parts_.space->remove_extent(begin, end);
    }
    may_lack_memory_ = false;
  }
  target_.order->end_reading();
}

Status TargetPager::cover_now(uint64_t begin, uint64_t end) {
  uint64_t at = begin;
  const auto add_up_to = [&](uint64_t next) -> Status {
    if (at == next) return {};
    FARPAGE_TRY_VOID(parts_.space->add_extent(at, next));
    // What is still being fetched with such a number was marked when the number was freed.
    for (const uffd::PageRun& run : parts_.space->runs_in(at, next))
      (void)discard_pages(target_, run, BusyPages::kSkip);
    return {};
  };
  for (const uffd::PageRun& run : parts_.space->runs_in(begin, end)) {
    const uint64_t address = parts_.space->address_of(run.first);
    FARPAGE_TRY_VOID(add_up_to(address));
    at = address + (uint64_t{run.pages} << kPageShift);
  }
  return add_up_to(end);
}

Status TargetPager::adopt_present(uint64_t begin, uint64_t end) {
  for (const uffd::PageRun& run : parts_.space->runs_in(begin, end))
    FARPAGE_TRY_VOID(
        parts_.space->find_present(run, [this](uffd::PageRun present) { adopt_run(present); }));
  budget_.interrupt();
  return {};
}

// One that has been given up meanwhile becomes Dirty though it is absent: its next fault finds that
// out (FaultWorker::fill_with_zeros).
void TargetPager::adopt_run(uffd::PageRun present) {
  const ChangingPages section(target_.order);
  for (uint32_t i = 0; i < present.pages; ++i) {
    const PageIndex page{present.first.value + i};
    const PageWord word = target_.table.load(page);
    const PageWord held = word.to(PageState::kFetching);
    if (word.state() != PageState::kEmpty || parts_.space->was_given_up_lately(page) ||
        !target_.table.transition(page, word, held))
      continue;
    budget_.inherit(1);
    target_.end_fetching(page, held, stamped(held.to(PageState::kDirty), target_.current_epoch()));
    target_.note_touched(page);
  }
}

Status TargetPager::bring_back() {
  budget_.lift_limit();
  engine_.evictor().pause(target_);
  if (pull_in(target_)) {
    // No message is left that its agent waits for.
    if (parts_.space->prepare_drop(Seconds(1))) (void)parts_.space->end_drop();
    return {};
  }
  engine_.evictor().resume(target_);
  budget_.restore_limit();
  return fail(ErrorCode::kUnavailable, "some pages could not be brought back");
}

void TargetPager::remove_extent(uint64_t begin, uint64_t end) {
  for (const uffd::PageRun& run : parts_.space->runs_in(begin, end)) {
    discard(run);
    parts_.pins.unpin(run);
  }
  const MutexLock lock(extents_mutex_);
  if (forking_) {
    given_up_.emplace_back(begin, end);
  } else {
    parts_.space->remove_extent(begin, end);
  }
}

bool TargetPager::pin(uffd::PageRun run) {
  if (!parts_.pins.pin(run)) return false;
  // After this, the evictor has finished all earlier picks; it picks none of these pages again.
  engine_.evictor().pause(target_);
  engine_.evictor().resume(target_);
  return true;
}

void TargetPager::hint_cold(uffd::PageRun run) {
  if (Readahead* readahead = engine_.readahead()) readahead->forget(target_, run);
  target_.cold.push(run);
  budget_.interrupt();
}

void TargetPager::hint_willneed(uffd::PageRun run) {
  target_.cold.forget(run);
  if (Readahead* readahead = engine_.readahead()) readahead->request(target_, run);
}

Status TargetPager::set_local(uint64_t local_bytes) {
  FARPAGE_TRY_VOID(validate_local(local_bytes));
  return set_limit(local_bytes >> kPageShift, 0);
}

Status TargetPager::set_limit(uint64_t pages, uint64_t shared_pages) {
  const MutexLock lock(resize_mutex_);
  if (!parts_.pins.set_limit(pin_limit_pages(parts_.options, pages)))
    return fail(ErrorCode::kConflict, too_much_is_pinned());
  target_.most_own.store(pages, std::memory_order_relaxed);
  budget_.resize(pages + shared_pages);
  return {};
}

Status TargetPager::refresh_stored(const std::vector<coordinator::Lease>& leases) {
  LeaseMap& map = parts_.image->fork_group()->leases_of(BackingRegion::kOfStored);
  return refresh_leases(leases, map, [this](const NodeId& id) { return engine_.index_of(id); });
}

uint64_t TargetPager::limit_to_pin(uffd::PageRun run) const {
  return limit_for(parts_.pins.pinned_pages() + run.pages);
}

// The smallest limit with which so many pages may be pinned.
uint64_t TargetPager::limit_for(uint64_t pinned_pages) const {
  const uint64_t percent = pin_percent(parts_.options);
  return (pinned_pages * 100 + percent - 1) / percent;
}

std::string TargetPager::too_much_is_pinned() const {
  const uint64_t pinned = parts_.pins.pinned_pages();
  return "local: " + format_size(pinned << kPageShift) + " are pinned (mlock), and at most " +
         std::to_string(pin_percent(parts_.options)) + " % may be: at least " +
         std::to_string((limit_for(pinned) >> kMiBShift) + 1) + "M, or unlock some";
}

bool TargetPager::begin_fork() {
  budget_.lift_limit();
  engine_.evictor().pause(target_);
  {
    const MutexLock lock(extents_mutex_);
    forking_ = true;
  }
  if (may_fork() && keeper_.begin_fork(fork_in_progress_.snapshot_table())) return true;
  end_fork(false);
  return false;
}

void TargetPager::end_fork(bool forked) {
  fork_in_progress_.close(forked, [this] { (void)keeper_.end_fork(); });
  {
    const MutexLock lock(extents_mutex_);
    forking_ = false;
    for (const auto& [begin, end] : given_up_) parts_.space->remove_extent(begin, end);
    given_up_.clear();
  }
  budget_.restore_limit();
  engine_.evictor().resume(target_);
}

bool TargetPager::may_fork() {
  switch (parts_.options.fork) {
    case ForkMode::kRefuse:
      return target_.table.away_pages() == 0;
    case ForkMode::kPullIn:
      return target_.table.away_pages() == 0 || pull_in(target_);
    case ForkMode::kShare:
      return static_cast<bool>(fork_in_progress_.open());
  }
  return false;
}

void TargetPager::adopt_children() {
  (void)parts_.attention.wait(Milliseconds(0));
  fork_in_progress_.adopt();
}

bool TargetPager::has_arrivals() const {
  engine_.core().event_readers.wait_until_handled();
  return fork_in_progress_.has_arrivals();
}

std::optional<uffd::FaultKind> TargetPager::next_fault(PageIndex page, bool write) const {
  switch (target_.table.load(page).state()) {
    case PageState::kDirty:
      return std::nullopt;
    case PageState::kClean:
    case PageState::kUnprotecting:
    case PageState::kEvicting:
      if (!write) return std::nullopt;
      return uffd::FaultKind::kWriteProtected;
    case PageState::kEmpty:
    case PageState::kFetching:
    case PageState::kDropping:
    case PageState::kRemote:
    case PageState::kLost:
      break;
  }
  return write ? uffd::FaultKind::kMissingWrite : uffd::FaultKind::kMissingRead;
}

bool TargetPager::is_away(PageIndex page) const {
  const PageWord word = target_.table.load(page);
  return word.state() == PageState::kRemote ||
         (word.state() == PageState::kFetching && word.has(PageWord::kFromRemote));
}

BudgetUse TargetPager::budget_use() const {
  BudgetUse use{.limit_pages = target_.most_own.load(std::memory_order_relaxed),
                .used_pages = budget_.used(),
                .least_pages = limit_for(parts_.pins.pinned_pages()),
                .family = parts_.image->fork_group()->number()};
  if (parts_.image->fork_group()->has_forked()) use.shared_pages = target_.table.shared_pages();
  for (uint32_t i = 0; i < parts_.options.workers; ++i) {
    const WorkerCounts& counts = target_.counts_of(i);
    use.faults +=
        counts.faults_remote.get() + counts.faults_compressed.get() + counts.faults_zero.get();
  }
  return use;
}

PagerStats TargetPager::stats_of_target() const {
  PagerStats sum;
  for (uint32_t i = 0; i < parts_.options.workers; ++i) sum.add(target_.counts_of(i));
  sum.add(target_.eviction.counts);
  // An idle target has recorded no times, and on some kernels reading them would take memory.
  if (sum.reads + sum.faults_zero + sum.faults_compressed + sum.evictions() > 0)
    sum.add(target_.times);
  sum.replicas_lost = target_.replicas_lost.load(std::memory_order_relaxed);
  sum.resident_pages = budget_.used();
  sum.budget_pages = budget_.limit();
  sum.away_pages = target_.table.away_pages();
  sum.cluster_watched = target_.clusters.watched();
  sum.cluster_watched_used = target_.clusters.used();
  sum.compressed_dropped = parts_.copies.dropped();
  sum.compressed_bytes = parts_.copies.bytes();
  sum.compressed_pool_pages = parts_.copies.pool_pages();
  sum.leased_slabs = backing_regions_.leased_slabs();
  return sum;
}

PagerStats TargetPager::stats() const {
  PagerStats sum = stats_of_target();
  sum.add(engine_.core().link_counts);
  engine_.repairer().count(sum);
  return sum;
}

coordinator::Counters TargetPager::counters_of(const LeaseMap& backing_region) {
  // One region of a process reports for all of them, and one process for the engine.
  const bool tells =
      backing_regions_.is_first(backing_region) && started_.load(std::memory_order_acquire);
  if (!tells) return {};
  return engine_.is_oldest(target_) ? stats().counters() : stats_of_target().counters();
}

void TargetPager::leased() {
  target_.cold.leased();
  if (!target_.cold.empty()) budget_.interrupt();
}

Status TargetPager::check_invariants() const {
  FARPAGE_TRY_VOID(pager::check_invariants(target_.table));
  FARPAGE_TRY_VOID(parts_.copies.check_invariants());
  if (parts_.options.checksums) FARPAGE_TRY_VOID(check_checksums());
  const uint64_t resident = resident_pages() + parts_.copies.pool_pages();
  if (resident != budget_.used())
    return fail(ErrorCode::kConflict, "the budget counts " + std::to_string(budget_.used()) +
                                          " pages, the table and the pool " +
                                          std::to_string(resident));
  return {};
}

// Of what may be read again.
Status TargetPager::check_checksums() const {
  const PageTable& table = target_.table;
  for (uint64_t i = table.next_used(0); i < table.pages(); i = table.next_used(i + 1)) {
    const PageIndex page{i};
    const PageWord word = table.load(page);
    const bool is_far = word.state() == PageState::kRemote || word.state() == PageState::kClean;
    if (!is_far || target_.leases_of(word).is_stored()) continue;
    if (target_.checksums_of(word).known(page) == 0)
      return fail(ErrorCode::kConflict, "page " + std::to_string(i) + " is " +
                                            std::string(to_string(word.state())) +
                                            " and has no checksum");
  }
  return {};
}

uint64_t TargetPager::resident_pages() const {
  uint64_t resident = 0;
  const PageTable& table = target_.table;
  for (uint64_t page = table.next_used(0); page < table.pages();
       page = table.next_used(page + kPagesPerBlock))
    resident += table.resident_in_block(page / kPagesPerBlock);
  return resident;
}

Result<std::unique_ptr<Pager>> Pager::create(
    const PagerOptions& options, std::unique_ptr<uffd::AddressSpace> space,
    coordinator::Client& client, std::vector<std::unique_ptr<rdma::Transport>>& transports,
    Milliseconds patience) {
  FARPAGE_TRY(engine, Engine::create(options, client, transports));
  FARPAGE_TRY(pager, engine->add({options.name, options.local_bytes, options.fork},
                                 std::move(space), patience, {}));
  static_cast<TargetPager&>(*pager).own(std::move(engine));
  return pager;
}

}  // namespace farpage::pager
