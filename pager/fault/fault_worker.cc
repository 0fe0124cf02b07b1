#include "pager/fault/fault_worker.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/cpus.h"
#include "base/log.h"
#include "pager/fault/mapping_changes.h"
#include "pager/fault/zeros.h"

namespace farpage::pager {
namespace {

uint64_t nanoseconds_since(Instant since) {
  return static_cast<uint64_t>((SteadyClock::read() - since).count());
}

}  // namespace

FaultWorker::FaultWorker(EngineCore& engine, Ports ports, WakePolicy& wake_policy, uint32_t index,
                         int cpu)
    : engine_(engine),
      wake_policy_(&wake_policy),
      index_(index),
      cpus_(std::thread::hardware_concurrency()),
      home_cpu_(cpu),
      fetcher_(engine, ports.demand, index),
      prefetcher_(ports.prefetch, index),
      look_for_next_(look_of(engine.options.channel.poll_mode)),
      thread_([this] { run(); }) {}

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

void FaultWorker::run() {
  (void)pthread_setname_np(pthread_self(), "fp-fault");
  allowed_cpus_ = allowed_cpus();
  parked_.reserve(kManyParked);
  if (home_cpu_ >= 0 && !run_on(home_cpu_)) log::warn("pager: cannot_pin cpu={}", home_cpu_);
  while (!engine_.workers_stopping.load(std::memory_order_acquire)) {
    // A target is removed only when no worker is in a turn that has begun before.
    engine_.event_readers.begin(index_);
    const Moved moved = take_turn();
    engine_.event_readers.end(index_);
    const bool blocked = std::exchange(blocked_, false);
    if (!blocked) blocked_turns_ = 0;
    if (!in_flight()) {
      if (blocked)
        wait_while_blocked();
      else
        wait_for_next(moved.answered);
    } else if (fetcher_.take_refused() | prefetcher_.take_refused()) {
      wait_for_messages();  // a thread of the program needs a CPU first
    } else if (moved.answered || moved.prefetched) {
      idle_since_ = Instant{0};
    } else {
      wait_in_flight();
    }
  }
}

FaultWorker::Moved FaultWorker::take_turn() {
  leave_closing();
  const size_t events = read_and_handle();
  if (std::exchange(reads_first_, false)) runs_in_wake_ = events > 0;
  fetcher_.post_queued();
  const bool fetched = fetcher_.progress();
  const bool prefetched = prefetcher_.progress();
  if (!parked_.empty()) retry_parked();
  if (lone_count_ > 0) fetch_clusters();
  nudge_evictor();
  return {events > 0 || fetched, prefetched};
}

void FaultWorker::note_served(Target& target) {
  const auto served = std::span(served_).first(served_count_);
  if (std::ranges::find(served, &target) != served.end()) return;
  if (served_count_ < served_.size()) served_[served_count_++] = &target;
}

// After the posts: the evictor would otherwise run on this CPU before them.
void FaultWorker::nudge_evictor() {
  for (Target* target : std::span(served_).first(served_count_)) target->nudge_evictor();
  served_count_ = 0;
}

void FaultWorker::leave_closing() {
  const uint64_t removals = engine_.removals.load(std::memory_order_acquire);
  if (removals == removals_seen_) return;
  removals_seen_ = removals;
  fetcher_.leave_closing();
  prefetcher_.leave_closing();
  std::erase_if(parked_, [this](const Parked& parked) {
    if (!parked.target->closing.load(std::memory_order_acquire)) return false;
    parked.target->let_go(index_);
    return true;
  });
  if (parked_.empty()) parked_gap_.rest();
  short_of_room_ = nullptr;
}

// On one CPU, a woken thread runs while this one yields, and its next fault is ready afterwards: a
// poll() would only add a delay. If the scheduler runs it before the waking call returns, that
// fault is ready now, and a yield would only let other threads run first. (If idle CPUs poll, a
// ready fault may also come from a thread on another CPU.) If another worker answers faults too,
// threads of several CPUs fault: a worker that reads eagerly takes the faults of the others, and
// wakes across CPUs.
void FaultWorker::wait_for_next(bool resolved) {
  const bool idle_cpus_poll = engine_.options.channel.poll_mode == rdma::PollMode::kBusy;
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
  watched_ = wake_policy_->watch(index_, engine_.targets.descriptor());
}

// Pages of a target with messages are being moved: that takes some 10 to 200 us, unless its agent
// has to wait for a CPU, or is stopped.
void FaultWorker::wait_while_blocked() {
  if (++blocked_turns_ < kBlockedYields) {
    ::sched_yield();
  } else {
    std::this_thread::sleep_for(
        std::min(kMaxBlockedPause, kBlockedPause * (blocked_turns_ / kBlockedYields)));
  }
}

size_t FaultWorker::read_and_handle() {
  size_t total = 0;
  engine_.targets.for_each_ready([&](Target& target) {
    std::array<uffd::Event, kMaxEvents> events;
    if (target.order != nullptr && !target.order->try_begin_reading()) {
      blocked_ = true;
      return;
    }
    const std::span read = std::span(events).first(target.space.read_events(events));
    apply_changes(target, read);
    if (target.order != nullptr) target.space.end_reading();
    const size_t count = read.size();
    if (count == 0) return;
    handle_faults(target, read);
    note_served(target);
    total += count;
  });
  return total;
}

void FaultWorker::handle_faults(Target& target, std::span<const uffd::Event> events) {
  const Instant now = SteadyClock::read();
  for (const uffd::Event& event : events) {
    const auto* fault = std::get_if<uffd::Fault>(&event);
    if (fault == nullptr) continue;
    wake_policy_->won(index_, {fault->thread, !watched_ || follows(fault->thread)});
    short_of_room_ = nullptr;
    if (target.recorder) [[unlikely]]
      record(target, *fault);
    if (handle(target, *fault, now)) continue;
    park(target, *fault, now);
  }
  watched_ = false;
}

// A thread that was woken with its neighbours faults once more: it keeps its place.
void FaultWorker::park(Target& target, const uffd::Fault& fault, Instant since) {
  const auto is_same = [&](const Parked& parked) {
    return parked.target == &target && parked.fault.page == fault.page &&
           parked.fault.kind == fault.kind && parked.fault.thread == fault.thread;
  };
  if (std::ranges::any_of(parked_, is_same)) return;
  if (short_of_room_ != nullptr) counts_of(target).faults_waited_room.add();
  parked_.push_back({&target, fault, since, short_of_room_ != nullptr});
  target.hold(index_);
}

bool FaultWorker::follows(uint32_t thread) {
  if (home_cpu_ < 0 || !wake_policy_->shared()) return false;
  if (follower_.note_fault(thread)) follower_.looked(look_at(thread));
  if (!follower_.following() && !std::exchange(is_home_, true)) (void)run_on(home_cpu_);
  return follower_.following();
}

ThreadFollower::Place FaultWorker::look_at(uint32_t thread) {
  if (running_threads_.count() <= cpus_) return ThreadFollower::Place::kIdle;
  const std::optional<int> cpu = running_threads_.cpu_of(thread);
  if (!cpu) return ThreadFollower::Place::kIdle;
  if (*cpu == ::sched_getcpu()) return ThreadFollower::Place::kHere;
  if (follower_.following() && std::ranges::binary_search(allowed_cpus_, *cpu) && run_on(*cpu))
    is_home_ = *cpu == home_cpu_;
  return ThreadFollower::Place::kElsewhere;
}

// It reads pages that leave, and one of them may be gone.
bool FaultWorker::is_of_evictor(const uffd::Fault& fault) const {
  return fault.thread != 0 &&
         fault.thread == engine_.evictor_thread.load(std::memory_order_acquire);
}

// Eviction waits for these threads.
bool FaultWorker::is_ours(const Target& target, const uffd::Fault& fault) const {
  return is_of_evictor(fault) || target.space.is_own_thread(fault.thread);
}

// The evictor's own faults are no touches of the program.
void FaultWorker::record(Target& target, const uffd::Fault& fault) const {
  if (!is_of_evictor(fault))
    target.recorder->touched(fault.page, fault.kind != uffd::FaultKind::kMissingRead);
}

void FaultWorker::retry_parked() {
  Target* short_of_room = nullptr;
  if (const Nanoseconds gap = parked_gap_.turn(SteadyClock::read()); gap.count() != 0)
    for (Parked& parked : parked_) {
      parked.target->budget.end_claim(parked.since);
      parked.since = parked_gap_.without(gap, parked.since);
    }
  size_t kept = 0;
  for (const Parked parked : parked_) {
    // With very many, only the first of those that wait for the same room are tried.
    if (kept >= kManyParked && parked.for_room && parked.target == short_of_room &&
        !is_ours(*parked.target, parked.fault)) {
      parked_[kept++] = parked;
      continue;
    }
    note_served(*parked.target);
    short_of_room_ = nullptr;
    if (!handle(*parked.target, parked.fault, parked.since)) {
      parked_[kept] = parked;
      parked_[kept++].for_room = short_of_room_ != nullptr;
      if (short_of_room_ != nullptr) short_of_room = short_of_room_;
    } else {
      parked.target->budget.end_claim(parked.since);
      parked.target->let_go(index_);
    }
  }
  parked_.resize(kept);
  short_of_room_ = short_of_room;
  if (kept == 0) parked_gap_.rest();
  fetcher_.post_queued();
}

void FaultWorker::wait_in_flight() {
  if (short_of_room_ != nullptr && fetcher_.outstanding() == 0 && prefetcher_.outstanding() == 0) {
    wait_for_room();
    return;
  }
  const Instant now = SteadyClock::read();
  if (idle_since_.count() == 0) idle_since_ = now;
  if (now - idle_since_ < kSpin) {
    ::sched_yield();
    return;
  }
  if (parked_.empty() && prefetcher_.outstanding() == 0) {
    fetcher_.wait_a_little();
    return;
  }
  wait_for_messages();
}

void FaultWorker::wait_for_messages() {
  pollfd poll{engine_.targets.descriptor(), POLLIN, 0};
  const timespec pause{.tv_sec = 0, .tv_nsec = 50'000};
  (void)::ppoll(&poll, 1, &pause, nullptr);
}

// Their parked faults hold the targets.
void FaultWorker::wait_for_room() {
  if (engine_.targets.has_one()) {
    const auto oldest = std::ranges::find(parked_, true, &Parked::for_room);
    short_of_room_->wait_for_room(kRoomWait, oldest->since);
    return;
  }
  bool ready = false;
  Nanoseconds timeout = kSharedRoomWait;
  for (const Parked& each : parked_) {
    if (!each.for_room) timeout = kSharedRetry;
    if (!each.for_room || each.target->begin_room_wait(index_, each.since)) continue;
    ready = true;
  }
  if (!ready) wake_policy_->await_room(index_, engine_.targets.descriptor(), timeout);
  for (const Parked& each : parked_) each.target->budget.end_room_wait(index_);
}

bool FaultWorker::handle(Target& target, const uffd::Fault& fault, Instant since) {
  const ChangingPages section(target.order);
  const PageWord word = target.table.load(fault.page);
  if (fault.kind == uffd::FaultKind::kWriteProtected)
    return handle_write_protected(target, fault, word, since);
  return handle_missing(target, fault, word, since);
}

bool FaultWorker::handle_missing(Target& target, const uffd::Fault& fault, PageWord word,
                                 Instant since) {
  switch (word.state()) {
    case PageState::kRemote:
      return fetch(target, fault, word, since);
    case PageState::kEmpty: {
      if (!take_room(target, fault, since)) return false;
      if (fill_fresh(target, fault, word, since)) return true;
      target.budget.give_back(1);
      return false;
    }
    case PageState::kFetching:
      // The page's owner wakes this thread too.
      if (!word.has(PageWord::kAwaited) && !target.table.mark_awaited(fault.page, word))
        return false;
      counts_of(target).faults_coalesced.add();
      return true;
    case PageState::kDropping:
      // The evictor wakes the range after the drop, and the thread faults again.
      target.come_forward();
      return true;
    case PageState::kClean:
    case PageState::kDirty:
    case PageState::kEvicting:
      // A stale fault of a page installed meanwhile, or the target dropped it past the shim. The
      // kernel decides: it places zeros only where no page is.
      return fill_with_zeros(target, fault, word, since);
    case PageState::kUnprotecting:
      return false;
    case PageState::kLost:
      return static_cast<bool>(target.space.poison({fault.page, 1}));
  }
  return false;
}

bool FaultWorker::fetch(Target& target, const uffd::Fault& fault, PageWord word, Instant since) {
  if (!fetcher_.has_room() || !take_room(target, fault, since)) return false;
  const PageWord fetching =
      word.to(PageState::kFetching, PageWord::kFromRemote | compressed_flag(word));
  if (!target.table.transition(fault.page, word, fetching)) {
    target.budget.give_back(1);
    return false;  // the page changed
  }
  fetcher_.start(target, fault.page, fetching, fault.kind, since);
  prefetch_after(target, fault, word);
  return true;
}

uint32_t FaultWorker::limit_of_prefetch(const Target& target) const {
  return prefetch_limit(target.budget.limit(), engine_.options.prefetch_depth);
}

// Fills a page that was never used and, in a stream, those that it will use next.
bool FaultWorker::fill_fresh(Target& target, const uffd::Fault& fault, PageWord word,
                             Instant since) {
  const AccessPattern pattern = target.access.of(fault.page);
  if (pattern != AccessPattern::kRandom) {
    const uffd::PageRun walk = fresh_walk(target.table, fault.page, limit_of_prefetch(target),
                                          pattern == AccessPattern::kSequential);
    if (walk.pages > 1) {
      fetcher_.post_queued();  // before the fill, which takes time
      if (fill_walk(target, counts_of(target), fault, word, walk)) {
        counts_of(target).faults_zero.add();
        target.times.zero_ns.record(nanoseconds_since(since));
        return true;
      }
    }
  }
  return fill_with_zeros(target, fault, word, since);
}

// A stream, or else, after the READ of the page, its neighbours. The page's word was `word`.
void FaultWorker::prefetch_after(Target& target, const uffd::Fault& fault, PageWord word) {
  const AccessPattern pattern = target.access.of(fault.page);
  if (pattern == AccessPattern::kRandom) return;
  const uint32_t limit = limit_of_prefetch(target);
  const auto plan =
      target.trends.observe(fault.thread, fault.page, limit, pattern == AccessPattern::kSequential);
  if (!plan) {
    if (limit >= Cluster::kPages && lone_count_ < lone_.size())
      lone_[lone_count_++] = {&target, fault, word};
    return;
  }
  // The demanded page goes first, to its completion if possible: shm copies while it posts.
  fetcher_.post_queued();
  (void)fetcher_.progress();
  prefetcher_.start(target, *plan);
}

void FaultWorker::fetch_clusters() {
  for (const Lone& lone : std::span(lone_).first(std::exchange(lone_count_, 0))) {
    Target& target = *lone.target;
    const PageIndex page = lone.fault.page;
    const Cluster cluster = target.clusters.choose(
        target.table, page, lone.word, target.age_clock.load(std::memory_order_relaxed));
    if (cluster.members == 0) continue;
    target.trends.came_with(lone.fault.thread, page, cluster);
    prefetcher_.start(target, cluster);
  }
}

// False: the target has as many frames of its own as it may have. After half of its deadline a
// fault gets one nevertheless: the pages of relatives, which leave meanwhile, may be very many.
bool FaultWorker::may_take_frame(Target& target, Instant since) {
  if (target.has_frames()) [[likely]]
    return true;
  const Instant now = SteadyClock::read();
  if (now - since > engine_.options.fault_deadline / 2 &&
      !target.on_trial.load(std::memory_order_relaxed))
    return true;
  short_of_room_ = &target;
  target.note_short_of_room(now);
  return false;
}

bool FaultWorker::take_room(Target& target, const uffd::Fault& fault, Instant since) {
  const bool may_take = may_take_frame(target, since);
  if (may_take && target.budget.try_take(since)) return true;
  if (is_ours(target, fault)) {
    target.budget.take_anyway();
    return true;
  }
  short_of_room_ = &target;
  const Instant now = SteadyClock::read();
  target.note_short_of_room(now);
  if (may_take && now - since > engine_.options.fault_deadline / kClaimsAfter)
    target.budget.claim(since);
  if (!target.space.cannot_drop_for_long() &&
      !target.eviction.progress.hopeless(since, now, engine_.options.fault_deadline))
    return false;
  if (target.order != nullptr) {
    take_without_room(target, now);
    return true;
  }
  if (!waits_for_nodes(target, now)) fail_for_room(target, fault.page, since);
  return false;
}

bool FaultWorker::waits_for_nodes(Target& target, Instant now) {
  if (engine_.options.on_full != OnFull::kWait || target.space.cannot_drop_for_long()) return false;
  // Eviction has its time from the moment at which there is a slab.
  if (!target.backing_regions.lacks_slab())
    return now - lacked_slab_at_ <= engine_.options.fault_deadline * EvictionProgress::kTriedOnce;
  lacked_slab_at_ = now;
  if (now - said_without_room_ < kSayAgain) return true;
  said_without_room_ = now;
  log::warn(
      "pager: waits_for_room program={} budget_pages={}: no node lends a slab, and faults wait "
      "until one does",
      target.options.name, target.budget.limit());
  return true;
}

// A program that was attached has not asked for a limit, and may have made its memory such that it
// cannot leave, or its agent is stopped: it goes on, above its budget.
void FaultWorker::take_without_room(Target& target, Instant now) {
  target.budget.take_anyway();
  if (now - said_without_room_ < kSayAgain) return;
  said_without_room_ = now;
  log::warn(
      "pager: above_budget program={} resident_pages={} budget_pages={}: its memory cannot leave "
      "(read-only, mlocked, pinned, without a memory node with free slabs, or its agent is "
      "stopped)",
      target.options.name, target.budget.used(), target.budget.limit());
}

void FaultWorker::fail_for_room(Target& target, PageIndex page, Instant since) {
  // The page's content, if it has one, stays where it is: only this access fails. SIGBUS on the
  // page is permanent, so it is the last resort against a hang.
  const PageWord word = target.table.load(page);
  if (word.state() != PageState::kEmpty && word.state() != PageState::kRemote) return;
  const bool remote = word.state() == PageState::kRemote;
  const PageWord fetching = word.to(PageState::kFetching, remote ? PageWord::kFromRemote : 0);
  if (!target.table.transition(page, word, fetching)) return;
  target.end_fetching(page, fetching, fetching.to(PageState::kLost));
  counts_of(target).faults_failed.add();
  log::error(
      "pager: no_room address={:#x} page={} waited_ms={} budget_pages={}: nothing could be written "
      "back (is there a memory node with free slabs?); the program gets SIGBUS there",
      target.space.address_of(page), page.value, nanoseconds_since(since) / 1'000'000,
      target.budget.limit());
}

bool FaultWorker::fill_with_zeros(Target& target, const uffd::Fault& fault, PageWord word,
                                  Instant since) {
  const PageIndex page = fault.page;
  const bool was_empty = word.state() == PageState::kEmpty;
  const PageWord fetching = word.to(PageState::kFetching);
  if (!target.table.transition(page, word, fetching)) return false;
  switch (target.space.zero({page, 1}, frames_for(fault.kind)).outcome) {
    case uffd::Outcome::kDone:
      target.end_fetching(page, fetching,
                          stamped(fetching.to(PageState::kDirty), target.next_epoch()));
      counts_of(target).faults_zero.add();
      target.times.zero_ns.record(nanoseconds_since(since));
      if (was_empty) target.note_touched(page);
      return true;
    case uffd::Outcome::kAlreadyPresent:
      // A stale fault. The page may have been written: Dirty is always safe.
      target.end_fetching(page, fetching, fetching.to(PageState::kDirty));
      if (was_empty) target.note_touched(page);
      return true;
    case uffd::Outcome::kRetry:
      // Restores the state: a resident page stays counted; for an empty one the caller returns the
      // room.
      target.end_fetching(page, fetching,
                          fetching.to(was_empty ? PageState::kEmpty : PageState::kDirty));
      return false;
    case uffd::Outcome::kProcessGone:
      target.gone.store(true, std::memory_order_release);
      [[fallthrough]];
    case uffd::Outcome::kUnmapped:
      target.end_fetching(page, fetching, fetching.to(PageState::kEmpty));
      target.budget.give_back(1);
      target.space.wake({page, 1});
      return true;
  }
  return true;
}

bool FaultWorker::handle_write_protected(Target& target, const uffd::Fault& fault, PageWord word,
                                         Instant since) {
  switch (word.state()) {
    case PageState::kEvicting:
    case PageState::kClean:
    // Protected along with its neighbours by the evictor, or shared.
    case PageState::kDirty:
      return handle_protected(target, fault, word, since);
    // Installed or unprotected, but the owner has not set the state yet. Its call has woken all
    // earlier waiters, but not this thread, if the evictor has protected the page again with a span
    // since.
    case PageState::kFetching:
    case PageState::kUnprotecting:
      return false;
    case PageState::kDropping:  // as for a missing page
      target.come_forward();
      return true;
    case PageState::kEmpty:
      // Discarded by the target, which is about to drop it: let the write proceed.
      return target.space.unprotect({fault.page, 1}) != uffd::Outcome::kRetry;
    case PageState::kRemote:
      // A forked child, say, has the page after all: no worker installed it here, so the fault is
      // not stale.
      if (word.has(PageWord::kMaybePresent)) return target.claim_present(fault.page, word);
      target.space.wake({fault.page, 1});  // it will fault again, as missing
      return true;
    case PageState::kLost:
      // Usually gone: then it faults again, as missing. A forked child may have the page.
      return target.space.unprotect({fault.page, 1}) != uffd::Outcome::kRetry;
  }
  return true;
}

// A write to a page that is present. The kernel copies it if it is shared.
bool FaultWorker::handle_protected(Target& target, const uffd::Fault& fault, PageWord word,
                                   Instant since) {
  const bool copies = is_shared(word) || target.on_trial.load(std::memory_order_relaxed);
  if (copies && !is_ours(target, fault) && !may_take_frame(target, since)) return false;
  if (word.state() == PageState::kEvicting) {
    counts_of(target).faults_rescued.add();
  } else if (word.state() == PageState::kClean) {
    counts_of(target).faults_write.add();
    target.note_first_write();
  } else {
    counts_of(target).faults_spurious.add();
  }
  return unprotect(target, fault.page, word);
}

bool FaultWorker::unprotect(Target& target, PageIndex page, PageWord word) {
  // Holds the page while it lifts the protection: otherwise the evictor could protect it in
  // between, and this call would undo that.
  const PageWord held = word.to(PageState::kUnprotecting);
  if (!target.table.transition(page, word, held)) return false;
  const uffd::Outcome outcome = target.space.unprotect({page, 1});
  if (outcome == uffd::Outcome::kProcessGone) target.gone.store(true, std::memory_order_release);
  target.note_copied();
  // The first write after a read installation adds no information about use.
  const PageWord dirty = held.to(PageState::kDirty);
  target.table.transition_owned(page, held,
                                word.state() == PageState::kClean ? dirty : in_use(dirty));
  return outcome != uffd::Outcome::kRetry;
}

}  // namespace farpage::pager
