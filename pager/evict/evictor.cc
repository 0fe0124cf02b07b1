#include "pager/evict/evictor.h"

#include <pthread.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace farpage::pager {

Evictor::Evictor(EngineCore& engine, LinkPort& port)
    : engine_(engine), batch_(engine, port), thread_([this] { run(); }) {}

Evictor::~Evictor() {
  engine_.eviction_priority.come_forward();
  engine_.pressure.signal();
}

template <typename Work>
void Evictor::in_turn(Work&& work) {
  others_.fetch_add(1, std::memory_order_seq_cst);
  engine_.eviction_priority.come_forward();
  {
    const std::lock_guard turn(turn_);
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
  in_turn([&] { targets_.push_back(&target); });
  engine_.pressure.signal();
}

void Evictor::remove(Target& target) {
  target.come_forward();
  in_turn([&] {
    if (batch_.is_of(target)) batch_.finish();
    std::erase(targets_, &target);
  });
}

void Evictor::pause(Target& target) {
  target.eviction.pauses.fetch_add(1, std::memory_order_seq_cst);
  target.come_forward();
  in_turn([&] {
    if (batch_.is_of(target)) batch_.finish();
  });
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
    const std::lock_guard turn(turn_);
    batch_.finish();
  }
}

bool Evictor::evict_next(Nanoseconds& pause) {
  Target* target = nullptr;
  {
    const std::lock_guard turn(turn_);
    bool some_rest = false;
    target = next_target(SteadyClock::read(), some_rest);
    if (target == nullptr) {
      if (!some_rest) step_back();
      pause = some_rest                           ? Nanoseconds(kRest)
              : engine_.options.resolve_in_thread ? Nanoseconds(kHelpersRest)
                                                  : Nanoseconds(kLook);
      return false;
    }
    if (!evict_batch(*target)) rest(*target);
    if (target->budget.has_waiters()) return true;
  }
  // Yields to a faulting thread on this CPU, unless a thread waits for room.
  std::this_thread::yield();
  return true;
}

Target* Evictor::next_target(Instant now, bool& some_rest) {
  Target* chosen = nullptr;
  size_t place = 0;
  for (size_t i = 0; i < targets_.size(); ++i) {
    const size_t at = (next_ + i) % targets_.size();
    Target& target = *targets_[at];
    if (!wants(target)) continue;
    if (now < target.eviction.rests_until) {
      some_rest = true;
      continue;
    }
    const bool hurried = target.budget.has_waiters();
    if (chosen != nullptr && !hurried) continue;
    chosen = &target;
    place = at;
    if (hurried) break;
  }
  if (chosen != nullptr) next_ = place + 1;
  return chosen;
}

bool Evictor::wants(Target& target) const {
  const Budget& budget = target.budget;
  bool& evicting = target.eviction.evicting;
  if (target.eviction.pauses.load(std::memory_order_seq_cst) > 0 ||
      target.closing.load(std::memory_order_relaxed)) {
    evicting = false;
    return false;
  }
  evicting = (evicting || budget.is_pressing() || budget.has_waiters()) && budget.above_low();
  return evicting || !target.cold.empty();
}

// Until room is short: Target::nudge_evictor(). The id of a target's agent is known late.
void Evictor::step_back() {
  for (Target* target : targets_) {
    EvictionState& state = target->eviction;
    if (!state.agent_known) {
      const pid_t agent = target->space.dropping_thread();
      state.agent_known = agent != 0;
      if (state.agent_known) state.agent_priority.add(agent);
    }
    state.agent_priority.step_back();
  }
  engine_.eviction_priority.step_back();
}

void Evictor::help(Target& target) {
  const std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn) return;
  if (batch_.active()) {
    if (batch_.advance() != EvictionBatch::Turn::kEnded) return;
    if (batch_.freed() == 0) rest(target);
  }
  const bool wanted = target.budget.above_high() &&
                      !target.closing.load(std::memory_order_acquire) &&
                      target.eviction.pauses.load(std::memory_order_seq_cst) == 0;
  if (wanted && SteadyClock::read() >= target.eviction.rests_until && !batch_.begin(target, kHelp))
    rest(target);
}

void Evictor::rest(Target& target) {
  target.eviction.evicting = false;
  target.eviction.rests_until = SteadyClock::read() + kRest;
}

bool Evictor::evict_batch(Target& target) {
  const Instant since = SteadyClock::read();
  batch_.finish();  // one that a helper began
  // No victims: everything resident is pinned, in use by fault workers, or in slabs without a
  // lease; or no cold page is left.
  const bool hurried = target.budget.has_waiters();
  if (!batch_.begin(target, hurried ? EvictionBatch::kLarge : EvictionBatch::kSmall))
    return !target.budget.above_low();
  batch_.finish();
  if (batch_.freed() > 0 || !target.budget.above_low()) {  // cold pages alone may stay
    target.eviction.stuck_batches = 0;
    target.eviction.stuck_said = false;
    return true;
  }
  if (!batch_.stuck()) return true;
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
