// The producer of an AgentRing: commands that only the target can execute on its memory go through
// a shared ring to the shim's agent thread (handover.h describes the waiting).
#pragma once

#include <functional>
#include <mutex>
#include <span>

#include "base/clock.h"
#include "base/mapping.h"
#include "base/result.h"
#include "uffd/handover.h"

namespace farpage::uffd {

// Threads: any; run() is serialised by a mutex that is held while the target works.
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
  uint32_t publish(std::span<const handover::Command> commands);
  Status wait_for_tail(uint32_t target_tail);

  std::mutex mutex_;
  Mapping memory_;
  handover::AgentRing& ring_;
  const std::function<bool()> target_alive_;
};

}  // namespace farpage::uffd
