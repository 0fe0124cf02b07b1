#include "shim/ring_commands.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>

#include "uffd/kernel_abi.h"

namespace farpage::shim {

namespace handover = uffd::handover;

namespace {

// How long the agent polls the ring before it sleeps: about the cost of waking an idle core.
constexpr int64_t kSpinNanoseconds = 30'000;

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24  // Linux 5.18
#endif

int64_t now_ns() {
  timespec now{};
  system_call(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

handover::Command& command_at(handover::AgentRing& ring, uint32_t index) {
  return ring.commands[index % handover::kRingCommands];
}

uint64_t bytes_of(const handover::Command& command) {
  return command.pages * kPageBytes;
}

}  // namespace

long RingCommands::create_ring() {
  const long fd = system_call(SYS_memfd_create, "farpage-agent-ring", MFD_CLOEXEC);
  if (is_error(fd)) {
    return fd;
  }
  const long sized = system_call(SYS_ftruncate, fd, sizeof(handover::AgentRing));
  const long address = is_error(sized) ? sized
                                       : system_call(SYS_mmap, nullptr, sizeof(handover::AgentRing),
                                                     PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (is_error(address)) {
    system_call(SYS_close, fd);
    return address;
  }
  // A new memfd is all zeros, which is an empty ring. A forked child must not have it.
  ring_ = reinterpret_cast<handover::AgentRing*>(address);
  system_call(SYS_madvise, ring_, sizeof(handover::AgentRing), MADV_DONTFORK);
  return fd;
}

void RingCommands::forget_after_fork() {
  ring_ = nullptr;  // not copied (MADV_DONTFORK)
  pidfd_ = -1;      // these two were in the descriptor table of the parent's agent
  empty_memfd_ = -1;
  vectored_drop_ = false;
}

void RingCommands::prepare() {
  ring_->agent_thread.store(static_cast<int32_t>(system_call(SYS_gettid)),
                            std::memory_order_release);
}

// Linux 6.13 and later accept MADV_DONTNEED in process_madvise on the calling process: one call,
// and one TLB shootdown, for a whole vector.
void RingCommands::probe_vectored_drop() {
  const long pidfd = system_call(SYS_pidfd_open, system_call(SYS_getpid), 0);
  if (is_error(pidfd)) {
    return;
  }
  pidfd_ = static_cast<int>(pidfd);
  const long page = system_call(SYS_mmap, nullptr, kPageBytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (is_error(page)) {
    return;
  }
  volatile char& byte = *reinterpret_cast<char*>(page);
  byte = 1;
  const iovec vector{.iov_base = reinterpret_cast<void*>(page), .iov_len = kPageBytes};
  const long advised = system_call(SYS_process_madvise, pidfd_, &vector, 1, MADV_DONTNEED, 0);
  vectored_drop_ = advised == static_cast<long>(kPageBytes) && byte == 0;
  system_call(SYS_munmap, page, kPageBytes);
}

void RingCommands::run(int userfault_fd) {
  userfault_fd_ = userfault_fd;
  probe_vectored_drop();
  while (!ends_.load(std::memory_order_acquire)) {
    uint32_t tail = ring_->tail.load(std::memory_order_relaxed);  // only this thread writes it
    const uint32_t head = wait_for_commands(tail);
    while (tail != head && !ends_.load(std::memory_order_acquire)) {
      const uint32_t waiting = head - tail;
      tail = execute(tail, tail + (waiting < kMaxBatch ? waiting : kMaxBatch));
      publish(tail);
    }
  }
}

void RingCommands::end() {
  ends_.store(true, std::memory_order_release);
  ring_->head.fetch_add(1, std::memory_order_seq_cst);  // the pager writes it no more
  system_call(SYS_futex, &ring_->head, FUTEX_WAKE, 1);
}

void RingCommands::release() {
  for (int* descriptor : {&pidfd_, &empty_memfd_}) {
    if (*descriptor >= 0) {
      system_call(SYS_close, *descriptor);
    }
    *descriptor = -1;
  }
  if (ring_ != nullptr) {
    system_call(SYS_munmap, ring_, sizeof(handover::AgentRing));
  }
  ring_ = nullptr;
}

uint32_t RingCommands::wait_for_commands(uint32_t tail) {
  const int64_t until_ns = now_ns() + kSpinNanoseconds;
  do {
    const uint32_t head = ring_->head.load(std::memory_order_acquire);
    if (head != tail) {
      return head;
    }
    system_call(SYS_sched_yield);
  } while (now_ns() < until_ns);
  for (;;) {
    // Pairs with the producer: it stores head, then reads agent_sleeps; the agent does the reverse.
    ring_->agent_sleeps.store(1, std::memory_order_seq_cst);
    const uint32_t head = ring_->head.load(std::memory_order_seq_cst);
    if (head != tail) {
      ring_->agent_sleeps.store(0, std::memory_order_relaxed);
      return head;
    }
    system_call(SYS_futex, &ring_->head, FUTEX_WAIT, tail, nullptr);
  }
}

uint32_t RingCommands::execute(uint32_t tail, uint32_t end) {
  handover::Command& command = command_at(*ring_, tail);
  switch (command.kind) {
    case handover::CommandKind::kDrop:
      if (vectored_drop_) {
        return drop_vector(tail, end);
      }
      command.result = drop(command);
      return tail + 1;
    case handover::CommandKind::kPoison:
      command.result = poison(command);
      return tail + 1;
  }
  command.result = EINVAL;
  return tail + 1;
}

// Executes the drops from `tail` up to the first command of another kind, or the first that the
// vector call cannot do (mlocked memory, an unmapped part), which is then done alone.
uint32_t RingCommands::drop_vector(uint32_t tail, uint32_t end) {
  iovec vector[kMaxBatch];
  uint32_t count = 0;
  while (tail + count != end) {
    const handover::Command& command = command_at(*ring_, tail + count);
    if (command.kind != handover::CommandKind::kDrop) {
      break;
    }
    vector[count++] = {.iov_base = reinterpret_cast<void*>(command.address),
                       .iov_len = bytes_of(command)};
  }
  const long advised = system_call(SYS_process_madvise, pidfd_, static_cast<const iovec*>(vector),
                                   count, MADV_DONTNEED, 0);
  uint64_t done_bytes = is_error(advised) ? 0 : static_cast<uint64_t>(advised);
  for (uint32_t i = 0; i < count; ++i) {
    handover::Command& command = command_at(*ring_, tail + i);
    if (done_bytes < bytes_of(command)) {
      command.result = drop(command);
      return tail + i + 1;
    }
    done_bytes -= bytes_of(command);
    command.result = 0;
  }
  return tail + count;
}

int32_t RingCommands::drop(const handover::Command& command) const {
  long result = system_call(SYS_madvise, command.address, bytes_of(command), MADV_DONTNEED);
  if (result == -EINVAL) {
    result = system_call(SYS_madvise, command.address, bytes_of(command), MADV_DONTNEED_LOCKED);
  }
  return static_cast<int32_t>(-result);
}

// A file has no page beyond its end: an access gets SIGBUS, with the address in siginfo.
int32_t RingCommands::poison(const handover::Command& command) {
  if (empty_memfd_ < 0) {
    const long fd = system_call(SYS_memfd_create, "farpage-lost-pages", MFD_CLOEXEC);
    if (is_error(fd)) {
      return static_cast<int32_t>(-fd);
    }
    empty_memfd_ = static_cast<int>(fd);
  }
  has_poisoned_.store(true, std::memory_order_release);
  const long result = system_call(SYS_mmap, command.address, bytes_of(command),
                                  PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, empty_memfd_, 0);
  if (is_error(result)) {
    return static_cast<int32_t>(-result);
  }
  // mmap wakes no waiter: a thread that waits for the page would wait forever.
  uffdio_range range{};
  range.start = command.address;
  range.len = bytes_of(command);
  const long woken = system_call(SYS_ioctl, userfault_fd_, UFFDIO_WAKE, &range);
  return is_error(woken) ? static_cast<int32_t>(-woken) : 0;
}

void RingCommands::publish(uint32_t tail) {
  // Pairs with the pager: it sets pager_sleeps, then reads tail; the agent does the reverse. A
  // reader that sees this tail also sees the results.
  ring_->tail.store(tail, std::memory_order_seq_cst);
  if (ring_->pager_sleeps.exchange(0, std::memory_order_seq_cst) != 0) {
    system_call(SYS_futex, &ring_->tail, FUTEX_WAKE, 1);
  }
}

}  // namespace farpage::shim
