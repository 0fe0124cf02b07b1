#include "shim/ring_commands.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/mman.h>

#include "shim/ring_consumer.h"
#include "uffd/kernel_abi.h"

namespace farpage::shim {

namespace handover = uffd::handover;

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

void RingCommands::probe_vectored_drop() {
  const long pidfd = system_call(SYS_pidfd_open, system_call(SYS_getpid), 0);
  if (is_error(pidfd)) {
    return;
  }
  pidfd_ = static_cast<int>(pidfd);
  vectored_drop_ = ring::accepts_vectored_drop(pidfd_);
}

void RingCommands::run(int userfault_fd) {
  userfault_fd_ = userfault_fd;
  probe_vectored_drop();
  while (!ends_.load(std::memory_order_acquire)) {
    uint32_t tail = ring_->tail.load(std::memory_order_relaxed);  // only this thread writes it
    const uint32_t head = ring::wait_for_commands(*ring_, tail);
    while (tail != head && !ends_.load(std::memory_order_acquire)) {
      const uint32_t waiting = head - tail;
      tail = execute(tail, tail + (waiting < ring::kMaxBatch ? waiting : ring::kMaxBatch));
      ring::publish(*ring_, tail);
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

uint32_t RingCommands::execute(uint32_t tail, uint32_t end) {
  handover::Command& command = ring::command_at(*ring_, tail);
  switch (command.kind) {
    case handover::CommandKind::kDrop:
      if (vectored_drop_) {
        return ring::drop_vector(*ring_, pidfd_, tail, end);
      }
      command.result = ring::drop(command);
      return tail + 1;
    case handover::CommandKind::kPoison:
      command.result = poison(command);
      return tail + 1;
    case handover::CommandKind::kMoveOut:
    case handover::CommandKind::kMoveBack:
    case handover::CommandKind::kUnshare:
    case handover::CommandKind::kEnd:
      break;  // for an injected agent
  }
  command.result = EINVAL;
  return tail + 1;
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
  const long result = system_call(SYS_mmap, command.address, ring::bytes_of(command),
                                  PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, empty_memfd_, 0);
  if (is_error(result)) {
    return static_cast<int32_t>(-result);
  }
  // mmap wakes no waiter: a thread that waits for the page would wait forever.
  uffdio_range range{};
  range.start = command.address;
  range.len = ring::bytes_of(command);
  const long woken = system_call(SYS_ioctl, userfault_fd_, UFFDIO_WAKE, &range);
  return is_error(woken) ? static_cast<int32_t>(-woken) : 0;
}

}  // namespace farpage::shim
