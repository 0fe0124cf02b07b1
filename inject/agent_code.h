// The agent that is injected into a program which runs already: position-independent code that is
// copied into it, and the memory that the agent shares with the injector.
//
// The shared mapping: an AgentRing (uffd/handover.h), AgentSetup, the agent's stack.
//
// The agent goes from step to step, each when the injector wants it; after kServe it executes the
// commands of the ring until kEnd. It has a descriptor table of its own: nothing of it appears in
// the program's, and what it has open stays open whatever the program closes (shim/agent.h).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/strong.h"
#include "uffd/handover.h"

namespace farpage::inject {

enum class AgentStep : uint32_t {
  kNone,     // makes no system call: under seccomp its first one may be its end
  kOpen,     // closes what it inherited; the lifeline (uffd/handover.h) is in `lifeline`
  kPrepare,  // its userfaultfd, by the descriptors that came through the lifeline, if any did
  kServe,    // the injector has taken its end of the lifeline, which is armed now
  kServing,  // in `wanted`: it has begun with kServe, so nobody may change his mind any more
  kLeave,    // gives back what it has, and ends
};

constexpr uint32_t word_of(AgentStep step) {
  return static_cast<uint32_t>(step);
}

// What has failed: `error` is its errno.
enum class AgentFailure : uint32_t { kNone, kLifeline, kUserfaultfd, kForeign, kStaging, kAdvice };

// A forked child has a userfaultfd already, and nobody knows which: so many are tried.
inline constexpr uint32_t kMaxInherited = 128;

inline constexpr uint64_t kStagingPages = 512;
inline constexpr uint64_t kStagingBytes = kStagingPages * kPageBytes;

struct AgentSetup {
  // Written by the injector before the agent's thread exists.
  uint64_t shared_address = 0;
  uint64_t shared_bytes = 0;
  uint64_t code_address = 0;
  uint64_t code_bytes = 0;
  char name[16] = {};
  // Before kPrepare: how many userfaultfds have been sent; 0: the agent makes one.
  uint32_t inherited = 0;
  // Futexes; each is an AgentStep. `wanted` rises from step to step. The agent changes it too, to
  // kLeave, when the next step has not come for kMaxStepSeconds: the injector is gone.
  std::atomic<uint32_t> wanted{0};
  std::atomic<uint32_t> done{0};
  // Written by the agent before it moves `done`.
  AgentFailure failure = AgentFailure::kNone;
  int32_t error = 0;
  int32_t lifeline[2] = {-1, -1};
  int32_t userfaultfd = -1;
  uint32_t chosen = 0;  // index of the one that is of this address space
  uint64_t staging_address = 0;
  // Of the kernel: the thread's id in its own PID namespace, and 0 after its end.
  int32_t thread = 0;
  uint32_t unused_futex = 0;  // nobody waits here
};

inline constexpr int64_t kMaxStepSeconds = 10;

inline constexpr uint64_t kSetupOffset = sizeof(uffd::handover::AgentRing);
static_assert(kSetupOffset % alignof(AgentSetup) == 0);
inline constexpr uint64_t kAgentStackBytes = 32 << 10;
inline constexpr uint64_t kSharedBytes =
    (kSetupOffset + sizeof(AgentSetup) + kAgentStackBytes + kPageBytes - 1) / kPageBytes *
    kPageBytes;

// To be copied into the program, to any address.
std::span<const std::byte> agent_code();

// In the code: a system call instruction, for clone(2). The new thread goes on behind it; it needs
// an own stack, and the address of its AgentSetup in r12.
size_t agent_clone_offset();

}  // namespace farpage::inject
