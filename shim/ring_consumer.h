// The agent's end of an AgentRing (uffd/handover.h): waiting for commands, drops, publishing
// results.
//
// In a header: an injected agent (inject/agent_code.cc) is one piece of code that calls nothing.
// Threads: the agent's, which makes raw system calls only (shim/agent.h says why).
#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>

#include <atomic>

#include "shim/syscalls.h"
#include "uffd/handover.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24  // Linux 5.18
#endif

namespace farpage::shim::ring {

using uffd::handover::AgentRing;
using uffd::handover::Command;
using uffd::handover::CommandKind;

// Maximum number of commands between two publish() calls, and in one process_madvise vector.
inline constexpr uint32_t kMaxBatch = 256;

// How long the agent polls the ring before it sleeps: about the cost of waking an idle core.
inline constexpr int64_t kSpinNanoseconds = 30'000;

inline int64_t now_ns() {
  timespec now{};
  system_call(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

inline Command& command_at(AgentRing& ring, uint32_t index) {
  return ring.commands[index % uffd::handover::kRingCommands];
}

inline uint64_t bytes_of(const Command& command) {
  return command.pages * kPageBytes;
}

// Returns the head, which differs from `tail`.
inline uint32_t wait_for_commands(AgentRing& ring, uint32_t tail) {
  const int64_t until_ns = now_ns() + kSpinNanoseconds;
  do {
    const uint32_t head = ring.head.load(std::memory_order_acquire);
    if (head != tail) {
      return head;
    }
    system_call(SYS_sched_yield);
  } while (now_ns() < until_ns);
  for (;;) {
    // Pairs with the producer: it stores head, then reads agent_sleeps; the agent does the reverse.
    ring.agent_sleeps.store(1, std::memory_order_seq_cst);
    const uint32_t head = ring.head.load(std::memory_order_seq_cst);
    if (head != tail) {
      ring.agent_sleeps.store(0, std::memory_order_relaxed);
      return head;
    }
    system_call(SYS_futex, &ring.head, FUTEX_WAIT, tail, nullptr);
  }
}

inline void publish(AgentRing& ring, uint32_t tail) {
  // Pairs with the pager: it sets pager_sleeps, then reads tail; the agent does the reverse. A
  // reader that sees this tail also sees the results.
  ring.tail.store(tail, std::memory_order_seq_cst);
  if (ring.pager_sleeps.exchange(0, std::memory_order_seq_cst) != 0) {
    system_call(SYS_futex, &ring.tail, FUTEX_WAKE, 1);
  }
}

inline int32_t drop(const Command& command) {
  long result = system_call(SYS_madvise, command.address, bytes_of(command), MADV_DONTNEED);
  if (result == -EINVAL) {
    result = system_call(SYS_madvise, command.address, bytes_of(command), MADV_DONTNEED_LOCKED);
  }
  return static_cast<int32_t>(-result);
}

// Linux 6.13 and later accept MADV_DONTNEED in process_madvise on the calling process: one call,
// and one TLB shootdown, for a whole vector. `pidfd` is the caller's own. A page is mapped for a
// moment: at `address`, if nothing is there.
inline bool accepts_vectored_drop(int pidfd, uint64_t address = 0) {
  const long page = system_call(SYS_mmap, address, kPageBytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (is_error(page)) {
    return false;
  }
  volatile char& byte = *reinterpret_cast<char*>(page);
  byte = 1;
  const iovec vector{.iov_base = reinterpret_cast<void*>(page), .iov_len = kPageBytes};
  const long advised = system_call(SYS_process_madvise, pidfd, &vector, 1, MADV_DONTNEED, 0);
  const bool accepted = advised == static_cast<long>(kPageBytes) && byte == 0;
  system_call(SYS_munmap, page, kPageBytes);
  return accepted;
}

// Executes the drops from `tail` up to the first command of another kind, or the first that the
// vector call cannot do (mlocked memory, an unmapped part), which is then done alone. Returns the
// new tail; at least one is done.
inline uint32_t drop_vector(AgentRing& ring, int pidfd, uint32_t tail, uint32_t end) {
  iovec vector[kMaxBatch];
  uint32_t count = 0;
  while (tail + count != end) {
    const Command& command = command_at(ring, tail + count);
    if (command.kind != CommandKind::kDrop) {
      break;
    }
    vector[count++] = {.iov_base = reinterpret_cast<void*>(command.address),
                       .iov_len = bytes_of(command)};
  }
  const long advised = system_call(SYS_process_madvise, pidfd, static_cast<const iovec*>(vector),
                                   count, MADV_DONTNEED, 0);
  uint64_t done_bytes = is_error(advised) ? 0 : static_cast<uint64_t>(advised);
  for (uint32_t i = 0; i < count; ++i) {
    Command& command = command_at(ring, tail + i);
    if (done_bytes < bytes_of(command)) {
      command.result = drop(command);
      return tail + i + 1;
    }
    done_bytes -= bytes_of(command);
    command.result = 0;
  }
  return tail + count;
}

}  // namespace farpage::shim::ring
