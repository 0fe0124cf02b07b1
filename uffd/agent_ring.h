// The producer of an AgentRing: commands that only the target can execute on its memory go through
// a shared ring to the shim's agent thread (handover.h describes the waiting).
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <span>

#include "base/clock.h"
#include "base/mapping.h"
#include "base/result.h"
#include "uffd/handover.h"

namespace farpage::uffd {

// Threads: any. One run() at a time; the others wait for it. post() waits for nobody.
class AgentRingProducer {
 public:
  // `target_alive` is called from time to time while waiting, so that a dead target ends the wait.
  AgentRingProducer(Mapping ring, std::function<bool()> target_alive);

  // Has the agent execute the commands, at most kRingCommands, waits for the results, and writes
  // them back. Fails with kUnavailable when the target is gone.
  Status run(std::span<handover::Command> commands);
  // The same without waiting; the results are lost.
  Status post(const handover::Command& command);
  // The id that the target reported, in its own PID namespace; 0: not reported yet.
  pid_t agent_thread() const { return ring_.agent_thread.load(std::memory_order_acquire); }

 private:
  bool has_room_for(size_t commands) const;
  uint32_t publish(std::span<const handover::Command> commands);
  Status wait_for_tail(uint32_t target_tail);

  std::mutex run_mutex_;  // held while the target works
  std::mutex mutex_;      // held for a few instructions
  // Guarded by mutex_: the first command of a run() whose results have not been read.
  std::optional<uint32_t> unread_;
  Mapping memory_;
  handover::AgentRing& ring_;
  const std::function<bool()> target_alive_;
};

}  // namespace farpage::uffd
