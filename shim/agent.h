// Agent: the thread in the target that executes the pager's commands (uffd/handover.h, AgentRing):
// the memory operations that only the target itself may perform.
//
// It is a bare kernel thread, not a pthread: libc does not count it (a program whose main thread
// calls pthread_exit still ends with its last thread, and one without threads keeps libc's
// single-threaded paths), and it can start before libc's constructors have run. Its own descriptor
// table keeps the userfaultfd and the control socket open even if the program closes them: if the
// last userfaultfd were closed, missing pages would read as zeros. It also has the lifeline: when
// the pager dies, the kernel kills this process (handover.h, kLifeline).
//
// Threads: start() once in each process. The agent's code shares its creator's thread-local
// storage. So it makes raw system calls only, calls no libc function that may set errno, never
// allocates, and never takes the shim's lock (its holder may wait for a pager that waits for the
// agent).
#pragma once

#include <atomic>
#include <cstddef>

#include "shim/syscalls.h"
#include "uffd/handover.h"

namespace farpage::shim {

class Agent {
 public:
  // Maximum number of commands between two publish() calls, and in one process_madvise vector.
  static constexpr uint32_t kMaxBatch = 256;

  constexpr Agent() = default;
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Creates the ring. Returns its memfd, for the pager, or a negative errno.
  long create_ring();
  // In a forked child: it has the memory of the parent's agent, but not its thread.
  void forget_after_fork();
  // Starts the thread; these descriptors stay open in its table. 0 or a negative errno.
  long start(int userfault_fd, int control_fd);

  // A command has mapped other memory over a part of the window.
  bool has_poisoned() const { return has_poisoned_.load(std::memory_order_acquire); }

 private:
  static int thread_main(void* self);
  void keep_descriptors() const;
  void end_with_the_pager() const;
  void probe_vectored_drop();
  [[noreturn]] void run();
  uint32_t wait_for_commands(uint32_t tail);
  // Executes commands[tail, end) and returns the new tail; at least one is done.
  uint32_t execute(uint32_t tail, uint32_t end);
  uint32_t drop_vector(uint32_t tail, uint32_t end);
  int32_t drop(const uffd::handover::Command& command) const;
  int32_t poison(const uffd::handover::Command& command);
  void publish(uint32_t tail);

  uffd::handover::AgentRing* ring_ = nullptr;
  int userfault_fd_ = -1;
  int control_fd_ = -1;
  // Agent thread only.
  int pidfd_ = -1;
  int empty_memfd_ = -1;
  bool vectored_drop_ = false;
  std::atomic<bool> has_poisoned_{false};
};

}  // namespace farpage::shim
