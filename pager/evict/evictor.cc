#include "pager/evict/evictor.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace farpage::pager {

Evictor::Evictor(EngineCore& engine, LinkPort& port)
    : engine_(engine),
      port_(port),
      batch_(std::make_unique<EvictionBatch>(engine, port)),
      thread_([this] { run(); }) {}

Evictor::~Evictor() {
  engine_.eviction_priority.come_forward();
  engine_.pressure.signal();
}

template <typename Work>
void Evictor::in_turn(Work&& work) {
  others_.fetch_add(1, std::memory_order_seq_cst);
  engine_.eviction_priority.come_forward();
  {
    const MutexLock turn(turn_);
    work();
  }
  if (others_.fetch_sub(1, std::memory_order_seq_cst) == 1) others_.notify_all();
}

// A mutex alone would let this thread take it again before a waiting one.
void Evictor::wait_for_others() const {
  for (uint32_t others = 0; (others = others_.load(std::memory_order_seq_cst)) != 0;)
    others_.wait(others);
}

void Evictor::add(Target& target) {
  {
    const MutexLock lock(added_mutex_);
    added_.push_back(&target);
  }
  engine_.pressure.signal();
}

void Evictor::take_added() {
  const MutexLock lock(added_mutex_);
  targets_.insert(targets_.end(), added_.begin(), added_.end());
  added_.clear();
}

template <typename Work>
void Evictor::settle(Target& target, Work&& work) {
  target.come_forward();
  bool dropping = true;
  while (dropping) {
    in_turn([&]() FARPAGE_REQUIRES(turn_) {
      if (batch_->is_of(target) && !batch_->finish()) put_aside();
      end_drops(Nanoseconds(0));
      dropping = target.eviction.progress.dropping();
      if (!dropping) work();
    });
    if (dropping) std::this_thread::sleep_for(kRest);
  }
}

void Evictor::remove(Target& target) {
  settle(target, [&]() FARPAGE_REQUIRES(turn_) {
    take_added();
    std::erase(targets_, &target);
  });
}

void Evictor::pause(Target& target) {
  target.eviction.pauses.fetch_add(1, std::memory_order_seq_cst);
  settle(target, [] {});
}

void Evictor::resume(Target& target) {
  const int pauses = target.eviction.pauses.fetch_sub(1, std::memory_order_seq_cst);
  FARPAGE_CHECK(pauses > 0, "resumed %d times too often", 1 - pauses);
  engine_.pressure.signal();
}

void Evictor::run() {
  (void)pthread_setname_np(pthread_self(), "fp-evict");
  engine_.evictor_thread.store(static_cast<uint32_t>(::gettid()), std::memory_order_release);
  engine_.eviction_priority.add(::gettid());
  while (!engine_.stopping.load(std::memory_order_acquire)) {
    wait_for_others();
    const uint32_t seen = engine_.pressure.seen();  // before all other reads
    Nanoseconds pause{0};
    if (evict_next(pause)) continue;
    if (engine_.stopping.load(std::memory_order_acquire)) break;
    engine_.pressure.wait(seen, pause);
    // Finishes a batch of a thread that no longer faults.
    const MutexLock turn(turn_);
    if (!batch_->finish()) put_aside();
  }
}

bool Evictor::evict_next(Nanoseconds& pause) {
  {
    const MutexLock turn(turn_);
    take_added();
    end_drops(Nanoseconds(0));
    const Instant now = SteadyClock::read();
    const Choice choice = choose(now);
    if (choice.target == nullptr) {
      if (aside_.empty() || all_drop_slowly(now)) {
        end_drops(Nanoseconds(1));
        if (!choice.some_rest) step_back(now);
        pause = choice.some_rest                    ? Nanoseconds(kRest)
                : !aside_.empty()                   ? Nanoseconds(kDropInterval)
                : engine_.options.resolve_in_thread ? Nanoseconds(kHelpersRest)
                                                    : Nanoseconds(kLook);
        return false;
      }
      end_drops(kAwaitDrop);
      return true;
    }
    if (choice.others_want) others_wanted_at_ = now;
    engine_.eviction_priority.go_ahead(now - others_wanted_at_ < kKeepsPriority);
    if (!evict_batch(*choice.target, choice.others_want)) rest(*choice.target);
    if (choice.target->budget.has_waiters()) return true;
  }
  // Yields to a faulting thread on this CPU, unless a thread waits for room.
  std::this_thread::yield();
  return true;
}

Evictor::Choice Evictor::choose(Instant now) {
  Choice choice;
  size_t place = 0;
  // Now and then the next one, whoever waits: some always wait where budgets are small.
  const bool in_order = choices_ % kChoicesInOrder == kChoicesInOrder - 1;
  size_t& next = in_order ? next_in_order_ : next_;
  bool hurried = in_order;
  for (size_t i = 0; i < targets_.size(); ++i) {
    const size_t at = (next + i) % targets_.size();
    Target& target = *targets_[at];
    if (!wants(target)) continue;
    if (now < target.eviction.rests_until) {
      choice.some_rest = true;
      continue;
    }
    choice.others_want = choice.target != nullptr;
    const bool more_hurried = !hurried && target.has_waiters(now);
    if (choice.target != nullptr && !more_hurried) continue;
    choice.target = &target;
    place = at;
    hurried = hurried || more_hurried;
  }
  if (choice.target != nullptr) next = place + 1;
  if (choice.others_want) ++choices_;
  return choice;
}

bool Evictor::wants(Target& target) const {
  Budget& budget = target.budget;
  bool& evicting = target.eviction.evicting;
  if (target.eviction.pauses.load(std::memory_order_seq_cst) > 0 ||
      target.eviction.progress.dropping() || target.closing.load(std::memory_order_relaxed)) {
    evicting = false;
    return false;
  }
  const bool was_evicting = evicting;
  evicting = (evicting || budget.is_pressing() || budget.is_full() || budget.has_waiters()) &&
             budget.above_low();
  budget.adapt_room(was_evicting && !evicting);
  return evicting || !target.cold.empty();
}

void Evictor::put_aside() {
  Target& target = batch_->target();
  target.eviction.progress.set_dropping(true);
  aside_.push_back({&target, std::move(batch_), SteadyClock::read()});
  if (spare_.empty()) spare_.push_back(std::make_unique<EvictionBatch>(engine_, port_));
  batch_ = std::move(spare_.back());
  spare_.pop_back();
}

void Evictor::end_drops(Nanoseconds patience) {
  if (patience.count() != 0 && aside_.size() > 1)
    std::rotate(aside_.begin(), aside_.begin() + 1, aside_.end());
  for (Aside& aside : aside_) {
    if (!aside.batch->await_drop(std::exchange(patience, Nanoseconds(0)))) continue;
    aside.target->eviction.progress.set_dropping(false);
    spare_.push_back(std::move(aside.batch));
  }
  std::erase_if(aside_, [](const Aside& aside) { return aside.batch == nullptr; });
}

bool Evictor::all_drop_slowly(Instant now) const {
  return std::ranges::all_of(aside_,
                             [&](const Aside& aside) { return now - aside.since > kSlowDrop; });
}

// Until room is short: Target::nudge_evictor(). The id of a target's agent is known late.
void Evictor::step_back(Instant now) {
  if (engine_.eviction_priority.was_needed()) needed_at_ = now;
  if (now - needed_at_ < kKeepsPriority) return;
  for (Target* target : targets_) {
    EvictionState& state = target->eviction;
    if (!state.agent_known) {
      const pid_t agent = target->space.dropping_thread();
      state.agent_known = agent != 0;
      if (state.agent_known) state.agent_priority.add(agent);
    }
    state.agent_priority.step_back();
  }
  // Where there is a file, the kernel's threads that carry out WRITEs to it have inherited the
  // priority of this one: without a CPU they keep the file's READs waiting.
  if (engine_.nodes->file() == nullptr) engine_.eviction_priority.step_back();
}

void Evictor::help(Target& target) {
  if (!turn_.try_lock()) return;
  const MutexLock turn(turn_, std::adopt_lock);
  if (batch_->active()) {
    if (batch_->advance() != EvictionBatch::Turn::kEnded) return;
    if (batch_->freed() == 0) rest(target);
  }
  const bool wanted = target.budget.above_high() && !target.eviction.progress.dropping() &&
                      !target.closing.load(std::memory_order_acquire) &&
                      target.eviction.pauses.load(std::memory_order_seq_cst) == 0;
  if (wanted && SteadyClock::read() >= target.eviction.rests_until &&
      !batch_->begin(target, kHelp, Nanoseconds(0)))
    rest(target);
}

void Evictor::rest(Target& target) {
  target.eviction.evicting = false;
  target.eviction.rests_until = SteadyClock::read() + kRest;
}

bool Evictor::evict_batch(Target& target, bool others_want) {
  const Instant since = SteadyClock::read();
  if (!batch_->finish()) {  // one that a helper began
    put_aside();
    if (target.eviction.progress.dropping()) return true;
  }
  // No victims: everything resident is pinned, in use by fault workers, or in slabs without a
  // lease; or no cold page is left.
  const bool hurried = target.budget.has_waiters() || target.budget.is_full();
  if (!batch_->begin(target, hurried ? EvictionBatch::kLarge : EvictionBatch::kSmall,
                     others_want ? Nanoseconds(0) : Nanoseconds(kAwaitDrop)))
    return !target.budget.above_low();
  if (!batch_->finish()) {
    put_aside();
    return true;
  }
  if (batch_->freed() > 0 || !target.budget.above_low()) {  // cold pages alone may stay
    target.eviction.stuck_batches = 0;
    target.eviction.stuck_said = false;
    return true;
  }
  if (!batch_->stuck()) return true;
  note_stuck(target, since);
  return false;
}

void Evictor::note_stuck(Target& target, Instant since) {
  EvictionState& state = target.eviction;
  if (state.stuck_batches++ == 0) state.stuck_since = since;
  const bool ends = target.closing.load(std::memory_order_acquire) || !target.space.alive();
  if (ends || SteadyClock::read() - state.stuck_since < kStuck) return;
  if (!std::exchange(state.stuck_said, true) || state.stuck_batches % 1000 == 0)
    log::warn("pager: eviction_stuck batches={} resident_pages={}", state.stuck_batches,
              target.budget.used());
}

}  // namespace farpage::pager
