// The producer of an AgentRing: commands that only the target can execute on its memory go through
// a shared ring to the shim's agent thread (handover.h describes the waiting).
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "base/clock.h"
#include "base/mapping.h"
#include "base/mutex.h"
#include "base/result.h"
#include "uffd/handover.h"

namespace farpage::uffd {

// Threads: any; begin() and await() one at a time. post() waits for nobody.
class AgentRingProducer {
 public:
  // `target_alive` is called when a wait has been in vain, so that a dead target ends the waits;
  // not for a look (patience 0).
  AgentRingProducer(Mapping ring, std::function<bool()> target_alive);

  // Has the agent execute the commands, at most kRingCommands. kTimedOut: the ring was full for
  // that long, and nothing has begun. kUnavailable: the target is gone.
  Status begin(std::span<const handover::Command> commands, Nanoseconds patience);
  // Waits for the results of the last begin(), and writes them back. kTimedOut: call it again; a
  // stopped target answers when it continues. kUnavailable: the target is gone.
  Status await(std::span<handover::Command> commands, Nanoseconds patience);
  // Waits until the agent has executed all that is in the ring. Wakes it: who has published the
  // last commands may have been killed before that.
  Status await_all(Nanoseconds patience);
  // Has the agent come to a command of this kind, and not executed it yet?
  bool is_at(handover::CommandKind kind) const;
  // Before the first command: what a dead producer has asked for and the agent has not begun is not
  // done. Only of commands that drop nothing when they have no pages.
  void cancel(handover::CommandKind kind);
  // Has the agent execute a command whose result is not wanted.
  Status post(const handover::Command& command);
  // The id that the target reported, in its own PID namespace; 0: not reported yet.
  pid_t agent_thread() const { return ring_.agent_thread.load(std::memory_order_acquire); }

 private:
  bool has_room_for(size_t commands) const FARPAGE_REQUIRES(mutex_);
  uint32_t publish(std::span<const handover::Command> commands) FARPAGE_REQUIRES(mutex_);
  Status wait_for_tail(uint32_t target_tail, Nanoseconds patience);

  Mutex mutex_;  // held for a few instructions
  // The first command of a begin() whose results have not been read.
  std::optional<uint32_t> unread_ FARPAGE_GUARDED_BY(mutex_);
  uint32_t end_ = 0;  // after the last command of the last begin()
  Mapping memory_;
  handover::AgentRing& ring_;
  const std::function<bool()> target_alive_;
};

}  // namespace farpage::uffd
