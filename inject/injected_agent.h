// A thread of ours in a program that already runs: it moves and drops pages of the program on
// request, as the shim's agent does in a program that `farpage run` has started.
//
// One thread of the program stands for about a millisecond while the agent's code and memory are
// placed; the others run on. No descriptor of ours appears in the program, and after withdraw() its
// /proc/PID/maps is as it was.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/result.h"
#include "inject/agent_tracer.h"

namespace farpage::inject {

// A userfaultfd that the kernel gave to a pager when a program forked.
struct InheritedUserfaultfd {
  int descriptor = -1;
  uint64_t features = 0;  // what UFFDIO_API has granted to the program's
};

struct InjectOptions {
  // A program that restricts its system calls (seccomp) gets an agent whose restrictions are
  // suspended for as long as this process traces it. When this process dies, the agent's next call
  // may be the program's end.
  bool allow_seccomp = false;
  // Set: the process is a child of ours that waits for this call, which has it call exec and does
  // not wait for that; it is given its agent before the first instruction of its new program.
  // kNotFound: it has ended before (the caller waits for its status). After another failure it has
  // been killed. Called once, in a thread of inject().
  std::function<void()> execute = {};
  // Not empty: the process is a forked child that has registered memory, and one of these, at most
  // kMaxInherited (inject/agent_code.h), is its userfaultfd, whose events somebody reads. The agent
  // finds out which. kConflict: none is.
  std::vector<InheritedUserfaultfd> inherited = {};
};

// A program that stands before its first instruction.
class HeldProgram {
 public:
  // Lets it go on.
  virtual ~HeldProgram() = default;
};

struct InjectedAgent {
  pid_t pid = 0;
  Fd process;        // pidfd
  pid_t thread = 0;  // the agent's id, in the PID namespace of our /proc
  Fd agent;          // pidfd of that thread: pidfd_getfd finds its descriptors
  // With uffd::attach_features(). The only registered memory is the staging area, but of a child
  // that has inherited it.
  Fd userfaultfd;
  uint64_t features = 0;
  size_t inherited = 0;  // index in InjectOptions::inherited
  // The mapping that we share with the agent, to be mapped by us and by a successor: an AgentRing
  // (uffd/handover.h) at its start.
  Fd ring;
  uint64_t ring_address = 0;  // in the program
  uint64_t ring_bytes = 0;
  // Private and anonymous, not inherited by children, without huge pages; its absent pages are
  // zeros, and no faults.
  uint64_t staging_address = 0;
  uint64_t staging_bytes = 0;
  uint64_t code_address = 0;
  uint64_t code_bytes = 0;
  // When nobody has it open any more, the kernel kills the program: a touch of a page that is away
  // would wait forever.
  Fd lifeline;
  // Only with seccomp.
  std::unique_ptr<AgentTracer> tracer;
  // Only with InjectOptions::execute.
  std::unique_ptr<HeldProgram> held;
  // How long a thread of the program stood; 0 with `held`.
  Nanoseconds stood{};
};

// Waits for up to some seconds. A failure has changed nothing, or says what is left.
//  kNotFound      no such process, or it has ended
//  kInvalid       a thread, a kernel thread, a 32-bit program, this process itself
//  kConflict      traced, stopped, has far memory already, or restricts its system calls
//  kDenied        a privilege is missing
//  kUnsupported   this kernel is too old
//  kUnavailable   no thread of it could be stopped in time
Result<InjectedAgent> inject(pid_t pid, const InjectOptions& options);

// Ends the agent and unmaps its memory. All pages of the program must be with it again, and no
// memory but the staging area registered; nobody else may use the ring any more. A program that has
// ended or has called exec meanwhile is no failure.
Status withdraw(InjectedAgent& agent);

}  // namespace farpage::inject
