#include "pager/evict/evictor.h"

#include <pthread.h>
#include <unistd.h>

#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace farpage::pager {

Evictor::Evictor(Core& core, LinkPort& port, bool paused)
    : core_(core),
      batch_(core, port),
      pauses_(paused ? 1 : 0),
      pause_hint_(paused),
      thread_([this] { run(); }) {}

Evictor::~Evictor() {
  core_.eviction_priority.come_forward();
  core_.budget.interrupt();
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Evictor::pause() {
  std::unique_lock lock(mutex_);
  ++pauses_;
  pause_hint_.store(true, std::memory_order_release);
  core_.eviction_priority.come_forward();
  core_.budget.interrupt();
  changed_.wait(lock, [this] { return paused_ || core_.stopping.load(std::memory_order_acquire); });
  lock.unlock();
  // The thread may have been paused all the time, and another thread may have helped between an
  // earlier resume() and the hint.
  const std::lock_guard turn(turn_);
  batch_.finish();
}

void Evictor::resume() {
  const std::lock_guard lock(mutex_);
  FARPAGE_CHECK(pauses_ > 0, "resumed %d times too often", 1 - pauses_);
  pause_hint_.store(--pauses_ > 0, std::memory_order_release);
  changed_.notify_all();
}

bool Evictor::wait_while_paused() {
  if (!pause_hint_.load(std::memory_order_acquire)) return false;
  std::unique_lock lock(mutex_);
  paused_ = pauses_ > 0;
  changed_.notify_all();
  changed_.wait(lock,
                [this] { return pauses_ == 0 || core_.stopping.load(std::memory_order_acquire); });
  paused_ = false;
  return true;
}

void Evictor::run() {
  (void)pthread_setname_np(pthread_self(), "fp-evict");
  core_.evictor_thread.store(static_cast<uint32_t>(::gettid()), std::memory_order_release);
  core_.eviction_priority.add(::gettid());
  while (true) {
    const uint32_t seen = core_.budget.pressure_seen();  // before all other reads
    if (core_.stopping.load(std::memory_order_acquire)) break;
    if (wait_while_paused()) continue;
    if (!core_.budget.is_pressing() && !core_.budget.has_waiters() && core_.cold.empty()) {
      step_back();
      core_.budget.wait_for_pressure(seen, core_.options.resolve_in_thread ? kHelpersRest : kLook);
      // Finishes a batch of a thread that no longer faults.
      const std::lock_guard turn(turn_);
      batch_.finish();
      continue;
    }
    while ((core_.budget.above_low() || !core_.cold.empty()) &&
           !pause_hint_.load(std::memory_order_acquire) &&
           !core_.stopping.load(std::memory_order_acquire)) {
      if (evict_batch()) {
        // Yields to a faulting thread on this CPU, unless a thread waits for room.
        if (!core_.budget.has_waiters()) std::this_thread::yield();
        continue;
      }
      std::this_thread::sleep_for(kRest);
      break;
    }
  }
  {
    const std::lock_guard turn(turn_);
    batch_.finish();
  }
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

// Until room is short: Core::nudge_evictor(). The id of the target's agent is known late.
void Evictor::step_back() {
  if (!agent_known_) {
    const pid_t agent = core_.space.dropping_thread();
    agent_known_ = agent != 0;
    if (agent_known_) core_.eviction_priority.add(agent);
  }
  core_.eviction_priority.step_back();
}

void Evictor::help() {
  const std::unique_lock turn(turn_, std::try_to_lock);
  if (!turn) return;
  if (batch_.active()) {
    if (batch_.advance() != EvictionBatch::Turn::kEnded) return;
    if (batch_.freed() == 0) rest();
  }
  const bool wanted = core_.budget.above_high() &&
                      !core_.stopping.load(std::memory_order_acquire) &&
                      !pause_hint_.load(std::memory_order_acquire);
  if (wanted && SteadyClock::read() >= rests_until_ && !batch_.begin(kHelp)) rest();
}

void Evictor::rest() {
  rests_until_ = SteadyClock::read() + kRest;
}

bool Evictor::evict_batch() {
  const std::lock_guard turn(turn_);
  const Instant since = SteadyClock::read();
  batch_.finish();  // one that a helper began
  // No victims: everything resident is pinned, in use by fault workers, or in slabs without a
  // lease; or no cold page is left.
  const bool hurried = core_.budget.has_waiters();
  if (!batch_.begin(hurried ? EvictionBatch::kLarge : EvictionBatch::kSmall))
    return !core_.budget.above_low();
  batch_.finish();
  if (batch_.freed() > 0 || !core_.budget.above_low()) {  // cold pages alone may stay
    stuck_batches_ = 0;
    stuck_said_ = false;
    return true;
  }
  if (!batch_.stuck()) return true;
  if (stuck_batches_++ == 0) stuck_since_ = since;
  const bool ends = core_.stopping.load(std::memory_order_acquire) || !core_.space.alive();
  if (ends || SteadyClock::read() - stuck_since_ < kStuck) return false;
  if (!std::exchange(stuck_said_, true) || stuck_batches_ % 1000 == 0)
    log::warn("pager: eviction_stuck batches={} resident_pages={}", stuck_batches_,
              core_.budget.used());
  return false;
}

}  // namespace farpage::pager
