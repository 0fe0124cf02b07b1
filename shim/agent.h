// Agent: the thread in the target that executes the pager's commands (ring_commands.h).
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

#include "shim/ring_commands.h"

namespace farpage::shim {

class Agent {
 public:
  constexpr Agent() = default;
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Creates the ring. Returns its memfd, for the pager, or a negative errno.
  long create_ring() { return commands_.create_ring(); }
  // In a forked child: it has the memory of the parent's agent, but not its thread.
  void forget_after_fork();
  // Starts the thread; these descriptors stay open in its table. 0 or a negative errno.
  long start(int userfault_fd, int control_fd);

  bool has_poisoned() const { return commands_.has_poisoned(); }

 private:
  static int thread_main(void* self);
  void keep_descriptors() const;
  void end_with_the_pager() const;

  RingCommands commands_;
  int userfault_fd_ = -1;
  int control_fd_ = -1;
};

}  // namespace farpage::shim
