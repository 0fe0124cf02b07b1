#include "uffd/agent_ring.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/futex.h"

namespace farpage::uffd {
namespace {

using handover::kRingCommands;

// The agent answers a batch in some 10 to 200 us; waking an idle core costs 20.
constexpr Nanoseconds kSpin = std::chrono::microseconds(30);

bool reached(uint32_t tail, uint32_t wanted) {
  return static_cast<int32_t>(tail - wanted) >= 0;
}

}  // namespace

AgentRingProducer::AgentRingProducer(Mapping ring, std::function<bool()> target_alive)
    : memory_(std::move(ring)),
      ring_(*reinterpret_cast<handover::AgentRing*>(memory_.data())),
      target_alive_(std::move(target_alive)) {
  FARPAGE_CHECK(memory_.size() >= sizeof(handover::AgentRing), "ring of %zu bytes", memory_.size());
}

uint32_t AgentRingProducer::publish(std::span<const handover::Command> commands) {
  const uint32_t head = ring_.head.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < commands.size(); ++i)
    ring_.commands[(head + i) % kRingCommands] = commands[i];
  const auto next = head + static_cast<uint32_t>(commands.size());
  // Sequentially consistent with the agent's store of agent_sleeps and re-read of head.
  ring_.head.store(next, std::memory_order_seq_cst);
  if (ring_.agent_sleeps.load(std::memory_order_seq_cst) != 0)
    futex_wake(ring_.head, FutexScope::kShared);
  return next;
}

Status AgentRingProducer::wait_for_tail(uint32_t wanted, Nanoseconds patience) {
  const Instant start = SteadyClock::read();
  while (!reached(ring_.tail.load(std::memory_order_acquire), wanted)) {
    const Nanoseconds waited = SteadyClock::read() - start;
    if (waited < std::min(kSpin, patience)) {
      ::sched_yield();
      continue;
    }
    if (waited >= patience)
      return patience.count() == 0 || target_alive_()
                 ? fail(ErrorCode::kTimedOut, "the target's agent does not answer")
                 : fail(ErrorCode::kUnavailable, "the target process is gone");
    ring_.pager_sleeps.store(1, std::memory_order_seq_cst);
    const uint32_t seen = ring_.tail.load(std::memory_order_seq_cst);
    if (!reached(seen, wanted))
      futex_wait(ring_.tail, seen, patience - waited, FutexScope::kShared);
    ring_.pager_sleeps.store(0, std::memory_order_relaxed);
  }
  return {};
}

// Slots of commands whose results are still to be read are not free.
bool AgentRingProducer::has_room_for(size_t commands) const {
  const uint32_t oldest = unread_ ? *unread_ : ring_.tail.load(std::memory_order_acquire);
  const uint32_t used = ring_.head.load(std::memory_order_relaxed) - oldest;
  return used + commands <= kRingCommands;
}

Status AgentRingProducer::begin(std::span<const handover::Command> commands, Nanoseconds patience) {
  FARPAGE_CHECK(commands.size() <= kRingCommands, "%zu commands", commands.size());
  while (true) {
    MutexLock lock(mutex_);
    if (has_room_for(commands.size())) {
      unread_ = ring_.head.load(std::memory_order_relaxed);
      end_ = publish(commands);
      return {};
    }
    // Full of commands of post(), which the agent executes without us.
    const uint32_t queued = ring_.head.load(std::memory_order_relaxed);
    lock.unlock();
    FARPAGE_TRY_VOID(wait_for_tail(queued, patience));
  }
}

Status AgentRingProducer::await(std::span<handover::Command> commands, Nanoseconds patience) {
  Status done = wait_for_tail(end_, patience);
  if (!done && done.error().code == ErrorCode::kTimedOut) return done;
  const MutexLock lock(mutex_);
  const uint32_t first = *std::exchange(unread_, std::nullopt);
  if (!done) return done;
  for (uint32_t i = 0; i < commands.size(); ++i) {
    const handover::Command& executed = ring_.commands[(first + i) % kRingCommands];
    commands[i].result = executed.result;
    commands[i].kept = executed.kept;
  }
  return {};
}

Status AgentRingProducer::await_all(Nanoseconds patience) {
  futex_wake(ring_.head, FutexScope::kShared);
  return wait_for_tail(ring_.head.load(std::memory_order_acquire), patience);
}

bool AgentRingProducer::is_at(handover::CommandKind kind) const {
  const uint32_t tail = ring_.tail.load(std::memory_order_acquire);
  return tail != ring_.head.load(std::memory_order_acquire) &&
         ring_.commands[tail % kRingCommands].kind == kind;
}

// One that the agent is executing now is not changed by this: it has been read.
void AgentRingProducer::cancel(handover::CommandKind kind) {
  const MutexLock lock(mutex_);
  const uint32_t head = ring_.head.load(std::memory_order_relaxed);
  for (uint32_t at = ring_.tail.load(std::memory_order_acquire); at != head; ++at) {
    handover::Command& command = ring_.commands[at % kRingCommands];
    if (command.kind == kind) command.pages = 0;
  }
}

Status AgentRingProducer::post(const handover::Command& command) {
  const MutexLock lock(mutex_);
  if (!has_room_for(1)) return fail(ErrorCode::kExhausted, "the agent's ring is full");
  publish({&command, 1});
  return {};
}

}  // namespace farpage::uffd
