#include "pager/fault/fault_worker.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include <utility>
#include <variant>

#include "base/log.h"
#include "pager/fault/discard.h"
#include "pager/fault/zeros.h"

namespace farpage::pager {
namespace {

void pin_this_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(cpu), &set);
  if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0)
    log::warn("pager: cannot_pin cpu={}", cpu);
}

uint64_t nanoseconds_since(Instant since) {
  return static_cast<uint64_t>((SteadyClock::read() - since).count());
}

}  // namespace

FaultWorker::FaultWorker(Core& core, Ports ports, TrendDetector& trends, WakePolicy& wake_policy,
                         uint32_t index, int cpu)
    : core_(core),
      trends_(trends),
      wake_policy_(&wake_policy),
      index_(index),
      fetcher_(core, ports.demand, stats_),
      prefetcher_(core, ports.prefetch, stats_),
      look_for_next_(look_of(core.options.channel.poll_mode)),
      thread_([this, cpu] { run(cpu); }) {}

Nanoseconds FaultWorker::look_of(rdma::PollMode mode) {
  switch (mode) {
    case rdma::PollMode::kAdaptive:
      return kAdaptiveLook;
    case rdma::PollMode::kBusy:
      return kBusyLook;
    case rdma::PollMode::kEvent:
      break;
  }
  return Nanoseconds(0);
}

void FaultWorker::run(int cpu) {
  (void)pthread_setname_np(pthread_self(), "fp-fault");
  if (cpu >= 0) pin_this_thread(cpu);
  while (!core_.workers_stopping.load(std::memory_order_acquire)) {
    const size_t events = read_and_handle();
    if (std::exchange(reads_first_, false)) runs_in_wake_ = events > 0;
    fetcher_.post_queued();
    const bool fetched = fetcher_.progress();
    const bool prefetched = prefetcher_.progress();
    const bool retried = parked_count_ > 0;
    if (retried) retry_parked();
    if (events > 0 || fetched || retried) core_.nudge_evictor();
    if (!in_flight()) {
      wait_for_next(events > 0 || fetched);
    } else if (events > 0 || fetched || prefetched) {
      idle_since_ = Instant{0};
    } else {
      wait_in_flight();
    }
  }
}

// On one CPU, a woken thread runs while this one yields, and its next fault is ready afterwards: a
// poll() would only add a delay. If the scheduler runs it before the waking call returns, that
// fault is ready now, and a yield would only let other threads run first. (If idle CPUs poll, a
// ready fault may also come from a thread on another CPU.) If another worker answers faults too,
// threads of several CPUs fault: a worker that reads eagerly takes the faults of the others, and
// wakes across CPUs.
void FaultWorker::wait_for_next(bool resolved) {
  const bool idle_cpus_poll = core_.options.channel.poll_mode == rdma::PollMode::kBusy;
  if (wake_policy_->shared() && (idle_cpus_poll || wake_policy_->won_last(index_))) {
    const Instant now = SteadyClock::read();
    if (resolved) {
      resolved_at_ = now;
      reads_first_ = !idle_cpus_poll && (runs_in_wake_ || ++since_probe_ % kYieldsToProbe == 0);
      if (reads_first_) return;
    }
    if (now - resolved_at_ < look_for_next_) {
      ::sched_yield();
      return;
    }
  }
  watched_ = wake_policy_->watch(index_, core_.space.event_descriptor());
}

size_t FaultWorker::read_and_handle() {
  // Room for the worst case: each event may need a slot or a parking place.
  if (kMaxParked - parked_count_ < kMaxEvents) return 0;
  std::array<uffd::Event, kMaxEvents> events;
  core_.event_readers.begin(index_);
  const size_t count = core_.space.read_events(events);
  if (count > 0) handle_events(std::span(events).first(count));
  core_.event_readers.end(index_);
  return count;
}

void FaultWorker::handle_events(std::span<uffd::Event> events) {
  const Instant now = SteadyClock::read();
  for (uffd::Event& event : events) {
    if (const auto* fault = std::get_if<uffd::Fault>(&event)) {
      wake_policy_->won(index_, {fault->thread, !watched_});
      short_of_room_ = false;
      if (handle(*fault, now)) continue;
      if (short_of_room_) stats_.faults_waited_room.add();
      parked_[parked_count_++] = {*fault, now};
    } else if (const auto* unmapped = std::get_if<uffd::Unmapped>(&event)) {
      handle_unmapped(*unmapped);
    } else if (const auto* moved = std::get_if<uffd::Moved>(&event)) {
      log::error(
          "pager: mremap_past_the_shim page={} pages={}: touching the moved memory is SIGBUS",
          moved->run.first.value, moved->run.pages);
    } else if (auto* forked = std::get_if<uffd::Forked>(&event)) {
      core_.on_forked(std::move(forked->child));
    } else if (const auto* stray = std::get_if<uffd::StrayFault>(&event)) {
      log::error("pager: stray_fault address={:#x}: the program gets SIGBUS there", stray->address);
    }
  }
  watched_ = false;
}

void FaultWorker::retry_parked() {
  short_of_room_ = false;
  const Nanoseconds gap = parked_gap_.turn(SteadyClock::read());
  if (gap.count() != 0)
    for (Parked& parked : std::span(parked_).first(parked_count_)) parked.since += gap;
  size_t kept = 0;
  for (size_t i = 0; i < parked_count_; ++i) {
    const Parked parked = parked_[i];
    if (!handle(parked.fault, parked.since)) parked_[kept++] = parked;
  }
  parked_count_ = kept;
  if (kept == 0) parked_gap_.rest();
  fetcher_.post_queued();
}

void FaultWorker::wait_in_flight() {
  if (short_of_room_ && fetcher_.outstanding() == 0 && prefetcher_.outstanding() == 0) {
    core_.wait_for_room(kRoomWait);
    return;
  }
  const Instant now = SteadyClock::read();
  if (idle_since_.count() == 0) idle_since_ = now;
  if (now - idle_since_ < kSpin) {
    ::sched_yield();
    return;
  }
  if (parked_count_ == 0 && prefetcher_.outstanding() == 0) {
    fetcher_.wait_a_little();
    return;
  }
  pollfd poll{core_.space.event_descriptor(), POLLIN, 0};
  const timespec pause{.tv_sec = 0, .tv_nsec = 50'000};
  (void)::ppoll(&poll, 1, &pause, nullptr);
}

bool FaultWorker::handle(const uffd::Fault& fault, Instant since) {
  const PageWord word = core_.table.load(fault.page);
  if (fault.kind == uffd::FaultKind::kWriteProtected) return handle_write_protected(fault, word);
  return handle_missing(fault, word, since);
}

bool FaultWorker::handle_missing(const uffd::Fault& fault, PageWord word, Instant since) {
  switch (word.state()) {
    case PageState::kRemote:
      return fetch(fault, word, since);
    case PageState::kEmpty: {
      if (!take_room(fault, since)) return false;
      if (fill_fresh(fault, word, since)) return true;
      core_.budget.give_back(1);
      return false;
    }
    case PageState::kFetching:
      // The page's owner wakes this thread too.
      if (!word.has(PageWord::kAwaited) && !core_.table.mark_awaited(fault.page, word))
        return false;
      stats_.faults_coalesced.add();
      return true;
    case PageState::kDropping:
      // The evictor wakes the range after the drop, and the thread faults again.
      core_.eviction_priority.come_forward();
      return true;
    case PageState::kClean:
    case PageState::kDirty:
    case PageState::kEvicting:
      // A stale fault of a page installed meanwhile, or the target dropped it past the shim. The
      // kernel decides: it places zeros only where no page is.
      return fill_with_zeros(fault, word, since);
    case PageState::kUnprotecting:
      return false;
    case PageState::kLost:
      return static_cast<bool>(core_.space.poison({fault.page, 1}));
  }
  return false;
}

bool FaultWorker::fetch(const uffd::Fault& fault, PageWord word, Instant since) {
  if (!fetcher_.has_room() || !take_room(fault, since)) return false;
  const PageWord fetching = word.to(PageState::kFetching, PageWord::kFromRemote);
  if (!core_.table.transition(fault.page, word, fetching)) {
    core_.budget.give_back(1);
    return false;  // the page changed
  }
  fetcher_.start(fault.page, fetching, fault.kind, since);
  prefetch_after(fault);
  return true;
}

// Size of the window fetched ahead of a stream: a small part of the budget.
uint32_t FaultWorker::window_limit() const {
  return static_cast<uint32_t>(
      std::min<uint64_t>(core_.budget.limit() / kWindowsInBudget, core_.options.prefetch_depth));
}

// Fills a page that was never used and, in a stream, those that it will use next.
bool FaultWorker::fill_fresh(const uffd::Fault& fault, PageWord word, Instant since) {
  const AccessPattern pattern = core_.access.of(fault.page);
  if (pattern != AccessPattern::kRandom) {
    const uffd::PageRun walk =
        fresh_walk(core_.table, fault.page, window_limit(), pattern == AccessPattern::kSequential);
    if (walk.pages > 1) {
      fetcher_.post_queued();  // before the fill, which takes time
      if (fill_walk(core_, stats_, fault, word, walk)) {
        stats_.faults_zero.add();
        stats_.zero_ns.record(nanoseconds_since(since));
        return true;
      }
    }
  }
  return fill_with_zeros(fault, word, since);
}

void FaultWorker::prefetch_after(const uffd::Fault& fault) {
  const AccessPattern pattern = core_.access.of(fault.page);
  if (pattern == AccessPattern::kRandom) return;
  const auto plan = trends_.observe(fault.thread, fault.page, window_limit(),
                                    pattern == AccessPattern::kSequential);
  if (!plan) return;
  // The demanded page goes first, to its completion if possible: shm copies while it posts.
  fetcher_.post_queued();
  (void)fetcher_.progress();
  prefetcher_.start(*plan);
}

bool FaultWorker::take_room(const uffd::Fault& fault, Instant since) {
  if (core_.budget.try_take()) return true;
  if (fault.thread != 0 && fault.thread == core_.evictor_thread.load(std::memory_order_acquire)) {
    core_.budget.take_anyway();
    return true;
  }
  short_of_room_ = true;
  if (SteadyClock::read() - since > core_.options.fault_deadline) fail_for_room(fault.page, since);
  return false;
}

void FaultWorker::fail_for_room(PageIndex page, Instant since) {
  // The page's content, if it has one, stays where it is: only this access fails. SIGBUS on the
  // page is permanent, so it is the last resort against a hang.
  const PageWord word = core_.table.load(page);
  if (word.state() != PageState::kEmpty && word.state() != PageState::kRemote) return;
  const PageWord fetching = word.to(PageState::kFetching);
  if (!core_.table.transition(page, word, fetching)) return;
  core_.end_fetching(page, fetching, fetching.to(PageState::kLost));
  stats_.faults_failed.add();
  log::error(
      "pager: no_room address={:#x} page={} waited_ms={} budget_pages={}: nothing could be written "
      "back (is there a memory node with free slabs?); the program gets SIGBUS there",
      core_.space.address_of(page), page.value, nanoseconds_since(since) / 1'000'000,
      core_.budget.limit());
}

bool FaultWorker::fill_with_zeros(const uffd::Fault& fault, PageWord word, Instant since) {
  const PageIndex page = fault.page;
  const bool was_empty = word.state() == PageState::kEmpty;
  const PageWord fetching = word.to(PageState::kFetching);
  if (!core_.table.transition(page, word, fetching)) return false;
  switch (core_.space.zero({page, 1}, frames_for(fault.kind)).outcome) {
    case uffd::Outcome::kDone:
      core_.end_fetching(page, fetching,
                         stamped(fetching.to(PageState::kDirty), core_.next_epoch()));
      stats_.faults_zero.add();
      stats_.zero_ns.record(nanoseconds_since(since));
      if (was_empty) core_.note_touched(page);
      return true;
    case uffd::Outcome::kAlreadyPresent:
      // A stale fault. The page may have been written: Dirty is always safe.
      core_.end_fetching(page, fetching, fetching.to(PageState::kDirty));
      if (was_empty) core_.note_touched(page);
      return true;
    case uffd::Outcome::kRetry:
      // Restores the state: a resident page stays counted; for an empty one the caller returns the
      // room.
      core_.end_fetching(page, fetching,
                         fetching.to(was_empty ? PageState::kEmpty : PageState::kDirty));
      return false;
    case uffd::Outcome::kProcessGone:
      core_.target_gone.store(true, std::memory_order_release);
      [[fallthrough]];
    case uffd::Outcome::kUnmapped:
      core_.end_fetching(page, fetching, fetching.to(PageState::kEmpty));
      core_.budget.give_back(1);
      core_.space.wake({page, 1});
      return true;
  }
  return true;
}

bool FaultWorker::handle_write_protected(const uffd::Fault& fault, PageWord word) {
  switch (word.state()) {
    case PageState::kEvicting:
      stats_.faults_rescued.add();
      return unprotect(fault.page, word);
    case PageState::kClean:
      stats_.faults_write.add();
      core_.note_first_write();
      return unprotect(fault.page, word);
    // Protected along with its neighbours by the evictor.
    case PageState::kDirty:
      return unprotect(fault.page, word);
    // Installed or unprotected, but the owner has not set the state yet. Its call has woken all
    // earlier waiters, but not this thread, if the evictor has protected the page again with a span
    // since.
    case PageState::kFetching:
    case PageState::kUnprotecting:
      return false;
    case PageState::kDropping:  // as for a missing page
      core_.eviction_priority.come_forward();
      return true;
    case PageState::kEmpty:
      // Discarded by the target, which is about to drop it: let the write proceed.
      return core_.space.unprotect({fault.page, 1}) != uffd::Outcome::kRetry;
    case PageState::kRemote:
      if (word.has(PageWord::kMaybePresent)) return claim_present(fault.page, word);
      core_.space.wake({fault.page, 1});  // it will fault again, as missing
      return true;
    case PageState::kLost:
      // Usually gone: then it faults again, as missing. A forked child may have the page.
      return core_.space.unprotect({fault.page, 1}) != uffd::Outcome::kRetry;
  }
  return true;
}

// A forked child has the page after all: no worker installed it here, so the fault is not stale.
bool FaultWorker::claim_present(PageIndex page, PageWord word) {
  const PageWord held = word.to(PageState::kFetching);
  if (!core_.table.transition(page, word, held)) return false;
  core_.budget.take_anyway();
  const uffd::Outcome outcome = core_.space.unprotect({page, 1});
  core_.end_fetching(page, held, held.to(PageState::kDirty));
  return outcome != uffd::Outcome::kRetry;
}

bool FaultWorker::unprotect(PageIndex page, PageWord word) {
  // Holds the page while it lifts the protection: otherwise the evictor could protect it in
  // between, and this call would undo that.
  const PageWord held = word.to(PageState::kUnprotecting);
  if (!core_.table.transition(page, word, held)) return false;
  const uffd::Outcome outcome = core_.space.unprotect({page, 1});
  if (outcome == uffd::Outcome::kProcessGone)
    core_.target_gone.store(true, std::memory_order_release);
  // The first write after a read installation adds no information about use.
  const PageWord dirty = held.to(PageState::kDirty);
  core_.table.transition_owned(page, held,
                               word.state() == PageState::kClean ? dirty : in_use(dirty));
  return outcome != uffd::Outcome::kRetry;
}

void FaultWorker::handle_unmapped(const uffd::Unmapped& event) {
  discard_pages(core_, event.run, BusyPages::kSkip);
}

}  // namespace farpage::pager
