// RingCommands: executes the pager's commands (uffd/handover.h, AgentRing): the memory operations
// that only the target itself may perform. Shared by the shim's agent and by libfarpage.
//
// Threads: run() in one, which makes raw system calls only (shim/agent.h says why); end() in
// another.
#pragma once

#include <atomic>

#include "shim/syscalls.h"
#include "uffd/handover.h"

namespace farpage::shim {

class RingCommands {
 public:
  constexpr RingCommands() = default;
  RingCommands(const RingCommands&) = delete;
  RingCommands& operator=(const RingCommands&) = delete;

  // Creates the ring. Returns its memfd, for the pager, or a negative errno.
  long create_ring();
  // In a forked child: it has the memory of the parent's, but not its thread.
  void forget_after_fork();
  // In the thread of run(), first: tells the pager which one it is.
  void prepare();
  // Executes commands until end().
  void run(int userfault_fd);
  // Once the pager sends none any more.
  void end();
  // After the return of run(): closes and unmaps what it has.
  void release();

  // A command has mapped other memory over a part of the window.
  bool has_poisoned() const { return has_poisoned_.load(std::memory_order_acquire); }

 private:
  void probe_vectored_drop();
  // Executes commands[tail, end) and returns the new tail; at least one is done.
  uint32_t execute(uint32_t tail, uint32_t end);
  int32_t poison(const uffd::handover::Command& command);

  uffd::handover::AgentRing* ring_ = nullptr;
  std::atomic<bool> ends_{false};
  std::atomic<bool> has_poisoned_{false};
  // The thread of run() only.
  int userfault_fd_ = -1;
  int pidfd_ = -1;
  int empty_memfd_ = -1;
  bool vectored_drop_ = false;
};

}  // namespace farpage::shim
