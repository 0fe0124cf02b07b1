// Everything of the agent is in one section, and refers to nothing outside of it: no calls, no
// constants in memory, no thread-local storage. CMakeLists.txt has the options for that;
// AgentCode.RefersToNothingOutside checks the object.
#include "inject/agent_code.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "shim/ring_consumer.h"
#include "shim/syscalls.h"
#include "uffd/kernel_abi.h"
#include "uffd/page_hash.h"

#define FARPAGE_INLINE static inline __attribute__((always_inline))

extern "C" {
extern const std::byte farpage_agent_begin[] asm("__start_farpage_agent")
    __attribute__((visibility("hidden")));
extern const std::byte farpage_agent_end[] asm("__stop_farpage_agent")
    __attribute__((visibility("hidden")));
extern const std::byte farpage_agent_clone[] __attribute__((visibility("hidden")));
}

// The injector's thread comes to the first instruction, and only the new thread behind it.
asm(R"(
  .pushsection farpage_agent, "ax", @progbits
  .globl farpage_agent_clone
  .hidden farpage_agent_clone
farpage_agent_clone:
  syscall
  xorl %ebp, %ebp
  movq %r12, %rdi
  call farpage_agent_main
  ud2
  .popsection
)");

namespace farpage::inject {
namespace {

using shim::is_error;
using shim::system_call;
using uffd::handover::AgentRing;
using uffd::handover::Command;
using uffd::handover::CommandKind;
using uffd::handover::kMaxMovedPages;

// About 20 s, where the processor has the shortest pause.
constexpr uint64_t kMaxPauses = uint64_t{1} << 31;

// Its userfaultfd is closed first: what is registered with one that somebody has open still cannot
// be unmapped before an event of that has been read.
FARPAGE_INLINE void leave(AgentSetup& setup) {
  system_call(SYS_close_range, 0, UINT32_MAX, 0);
  if (setup.staging_address != 0) {
    system_call(SYS_munmap, setup.staging_address, kStagingBytes);
  }
}

// Without a system call.
FARPAGE_INLINE void spin_until_begun(AgentSetup& setup) {
  for (uint64_t i = 0; i < kMaxPauses; ++i) {
    if (setup.wanted.load(std::memory_order_acquire) != word_of(AgentStep::kNone)) {
      return;
    }
    __builtin_ia32_pause();
  }
}

// Tells that `step` is done, and returns the next step.
FARPAGE_INLINE AgentStep next_step(AgentSetup& setup, AgentStep step) {
  const uint32_t done = word_of(step);
  setup.done.store(done, std::memory_order_seq_cst);
  system_call(SYS_futex, &setup.done, FUTEX_WAKE, 1);
  const int64_t until_ns = shim::ring::now_ns() + kMaxStepSeconds * 1'000'000'000;
  for (;;) {
    uint32_t wanted = setup.wanted.load(std::memory_order_acquire);
    if (wanted == word_of(AgentStep::kServe) &&
        !setup.wanted.compare_exchange_strong(wanted, word_of(AgentStep::kServing),
                                              std::memory_order_seq_cst)) {
      continue;
    }
    if (wanted != done) {
      return static_cast<AgentStep>(wanted);
    }
    const int64_t rest_ns = until_ns - shim::ring::now_ns();
    if (rest_ns <= 0) {
      setup.wanted.compare_exchange_strong(wanted, word_of(AgentStep::kLeave),
                                           std::memory_order_seq_cst);
      continue;
    }
    timespec rest{};
    rest.tv_sec = rest_ns / 1'000'000'000;
    rest.tv_nsec = rest_ns % 1'000'000'000;
    system_call(SYS_futex, &setup.wanted, FUTEX_WAIT, done, &rest);
  }
}

FARPAGE_INLINE bool failed(AgentSetup& setup, AgentFailure what, long result) {
  if (!is_error(result)) {
    return false;
  }
  setup.failure = what;
  setup.error = static_cast<int32_t>(-result);
  return true;
}

FARPAGE_INLINE void open(AgentSetup& setup) {
  system_call(SYS_close_range, 0, UINT32_MAX, 0);
  system_call(SYS_prctl, PR_SET_NAME, static_cast<char*>(setup.name), 0, 0, 0);
  failed(setup, AgentFailure::kLifeline,
         system_call(SYS_socketpair, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0,
                     static_cast<int32_t*>(setup.lifeline)));
}

// The descriptor of the next message, or -1.
FARPAGE_INLINE long receive_descriptor(int socket) {
  uint64_t control[3] = {};  // a cmsghdr, then the descriptor
  static_assert(sizeof(cmsghdr) == 2 * sizeof(uint64_t));
  char nothing = 0;
  iovec bytes{.iov_base = &nothing, .iov_len = 1};
  msghdr message;
  message.msg_name = nullptr;
  message.msg_namelen = 0;
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = static_cast<uint64_t*>(control);
  message.msg_controllen = sizeof(control);
  message.msg_flags = 0;
  const long got = system_call(SYS_recvmsg, socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got != 1 || message.msg_controllen < sizeof(cmsghdr) + sizeof(int)) {
    return -1;
  }
  return static_cast<int>(control[2] & UINT32_MAX);
}

FARPAGE_INLINE long make_userfaultfd(int lifeline) {
  const long device = receive_descriptor(lifeline);  // of /dev/userfaultfd
  if (device < 0) {
    return system_call(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
  }
  const long made = system_call(SYS_ioctl, device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
  system_call(SYS_close, device);
  return made;
}

FARPAGE_INLINE void sleep_ms(AgentSetup& setup) {
  timespec pause{};
  pause.tv_sec = 0;
  pause.tv_nsec = 1'000'000;
  system_call(SYS_futex, &setup.unused_futex, FUTEX_WAIT, 0, &pause);
}

// Is this the userfaultfd of the address space that this thread is in? UFFDIO_MOVE looks at that
// first (EINVAL), and then for the mappings, which are not there (ENOENT). EAGAIN: an event of it
// is unread.
FARPAGE_INLINE bool is_of_this_memory(AgentSetup& setup, long userfaultfd, uint64_t hole) {
  constexpr int kMaxTries = 500;
  for (int i = 0; i < kMaxTries; ++i) {
    uffdio_move request;
    request.dst = hole;
    request.src = hole;
    request.len = kPageBytes;
    request.mode = 0;
    request.move = 0;
    const long result = system_call(SYS_ioctl, userfaultfd, UFFDIO_MOVE, &request);
    if (result != -EAGAIN) {
      return result == -ENOENT;
    }
    sleep_ms(setup);
  }
  return false;
}

// -ESRCH: none of them.
FARPAGE_INLINE long choose_userfaultfd(AgentSetup& setup, uint64_t hole) {
  long chosen = -ESRCH;
  for (uint32_t i = 0; i < setup.inherited; ++i) {
    const long descriptor = receive_descriptor(setup.lifeline[0]);
    if (chosen < 0 && descriptor >= 0 && is_of_this_memory(setup, descriptor, hole)) {
      chosen = descriptor;
      setup.chosen = i;
    } else if (descriptor >= 0) {
      system_call(SYS_close, descriptor);
    }
  }
  return chosen;
}

FARPAGE_INLINE void prepare(AgentSetup& setup) {
  const long staging =
      system_call(SYS_mmap, setup.code_address + setup.code_bytes, kStagingBytes + kPageBytes,
                  PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (failed(setup, AgentFailure::kStaging, staging)) {
    return;
  }
  setup.staging_address = static_cast<uint64_t>(staging);
  const uint64_t hole = setup.staging_address + kStagingBytes;
  system_call(SYS_munmap, hole, kPageBytes);
  const bool inherits = setup.inherited > 0;
  const long userfaultfd =
      inherits ? choose_userfaultfd(setup, hole) : make_userfaultfd(setup.lifeline[0]);
  if (failed(setup, inherits ? AgentFailure::kForeign : AgentFailure::kUserfaultfd, userfaultfd)) {
    return;
  }
  setup.userfaultfd = static_cast<int32_t>(userfaultfd);
  if (failed(setup, AgentFailure::kAdvice,
             system_call(SYS_madvise, staging, kStagingBytes, MADV_DONTFORK)) ||
      failed(setup, AgentFailure::kAdvice,
             system_call(SYS_madvise, setup.shared_address, setup.shared_bytes, MADV_DONTFORK)) ||
      failed(setup, AgentFailure::kAdvice,
             system_call(SYS_madvise, setup.code_address, setup.code_bytes, MADV_DONTFORK))) {
    return;
  }
  // EINVAL: a kernel without huge pages.
  system_call(SYS_madvise, staging, kStagingBytes, MADV_NOHUGEPAGE);
}

// See Agent::end_with_the_pager in shim/agent.cc: armed only when the other end is in no table but
// the injector's. An exec closes this thread's descriptors, too.
FARPAGE_INLINE void arm_lifeline(AgentSetup& setup) {
  const int mine = setup.lifeline[0];
  system_call(SYS_close, setup.lifeline[1]);
  const long self = system_call(SYS_getpid);
  const long flags = system_call(SYS_fcntl, mine, F_GETFL);
  system_call(SYS_fcntl, mine, F_SETSIG, SIGKILL);
  system_call(SYS_fcntl, mine, F_SETOWN, self);
  system_call(SYS_fcntl, mine, F_SETFL, flags | O_ASYNC);
  char nothing = 0;
  if (system_call(SYS_recvfrom, mine, &nothing, sizeof(nothing), MSG_DONTWAIT, nullptr, nullptr) !=
      -EAGAIN) {
    system_call(SYS_kill, self, SIGKILL);  // the injector was gone before
  }
}

FARPAGE_INLINE void disarm_lifeline(AgentSetup& setup) {
  const long flags = system_call(SYS_fcntl, setup.lifeline[0], F_GETFL);
  system_call(SYS_fcntl, setup.lifeline[0], F_SETFL, flags & ~static_cast<long>(O_ASYNC));
}

// Moves what can be moved. The kernel stops at the first page that it refuses: that one is kept,
// and the next call begins behind it.
FARPAGE_INLINE int32_t move(int userfaultfd, Command& command, uint64_t to, uint64_t from,
                            uint64_t mode) {
  uint64_t kept = 0;
  int32_t first_errno = 0;
  uint32_t done = 0;
  bool singly = false;
  while (done < command.pages) {
    const uint32_t wanted = singly ? 1 : command.pages - done;
    uffdio_move request;
    request.dst = to + done * kPageBytes;
    request.src = from + done * kPageBytes;
    request.len = wanted * kPageBytes;
    request.mode = mode;
    request.move = 0;
    const long result = system_call(SYS_ioctl, userfaultfd, UFFDIO_MOVE, &request);
    if (!is_error(result)) {
      done += wanted;
      continue;
    }
    if (request.move > 0) {  // and EAGAIN, whatever stopped it
      done += static_cast<uint32_t>(static_cast<uint64_t>(request.move) / kPageBytes);
      continue;
    }
    if (result == -EINVAL && wanted > 1) {  // the range has no single mapping
      singly = true;
      continue;
    }
    if (first_errno == 0) {
      first_errno = static_cast<int32_t>(-result);
    }
    if (result == -EAGAIN) {
      first_errno = EAGAIN;
      kept |= ~uint64_t{0} << done & ~uint64_t{0} >> (kMaxMovedPages - command.pages);
      break;
    }
    kept |= uint64_t{1} << done;
    ++done;
  }
  command.kept = kept;
  return first_errno;
}

FARPAGE_INLINE uint64_t hash_moved(const Command& command, uint64_t staging) {
  uint64_t hash = 0;
  for (uint32_t i = 0; i < command.pages; ++i) {
    if ((command.hashed & ~command.kept) >> i & 1) {
      hash = uffd::hash_of_pages(
          hash, uffd::hash_page(reinterpret_cast<const void*>(staging + i * kPageBytes)));
    }
  }
  return hash;
}

FARPAGE_INLINE int32_t move_command(AgentSetup& setup, Command& command) {
  if (command.pages == 0 || command.pages > kMaxMovedPages ||
      command.staging_page > kStagingPages - command.pages) {
    command.kept = ~uint64_t{0};
    return EINVAL;
  }
  const uint64_t staging = setup.staging_address + command.staging_page * kPageBytes;
  if (command.kind == CommandKind::kMoveOut) {
    const int32_t result =
        move(setup.userfaultfd, command, staging, command.address, UFFDIO_MOVE_MODE_DONTWAKE);
    command.hash = hash_moved(command, staging);
    return result;
  }
  return move(setup.userfaultfd, command, command.address, staging, 0);
}

// FUTEX_WAKE_OP adds 0 to the first word of the page. The kernel does it: EFAULT, and no signal,
// where nothing is mapped. A shared futex, so that none of the usual, private ones is woken.
FARPAGE_INLINE int32_t unshare(AgentSetup& setup, const Command& command) {
  int32_t first_errno = 0;
  for (uint32_t i = 0; i < command.pages; ++i) {
    const uint64_t page = command.address + i * kPageBytes;
    const long result = system_call(SYS_futex, &setup.unused_futex, FUTEX_WAKE_OP, 0, 0, page,
                                    FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_EQ, 0));
    if (is_error(result) && first_errno == 0) {
      first_errno = static_cast<int32_t>(-result);
    }
  }
  return first_errno;
}

// Until kEnd.
FARPAGE_INLINE void serve(AgentSetup& setup, AgentRing& ring) {
  const long pidfd = system_call(SYS_pidfd_open, system_call(SYS_getpid), 0);
  const bool vectored_drop =
      !is_error(pidfd) && shim::ring::accepts_vectored_drop(static_cast<int>(pidfd),
                                                            setup.staging_address + kStagingBytes);
  uint32_t tail = ring.tail.load(std::memory_order_relaxed);
  for (;;) {
    const uint32_t head = shim::ring::wait_for_commands(ring, tail);
    while (tail != head) {
      Command& command = shim::ring::command_at(ring, tail);
      const CommandKind kind = command.kind;
      if (kind == CommandKind::kDrop && vectored_drop) {
        const uint32_t most =
            head - tail < shim::ring::kMaxBatch ? head - tail : shim::ring::kMaxBatch;
        tail = shim::ring::drop_vector(ring, static_cast<int>(pidfd), tail, tail + most);
        shim::ring::publish(ring, tail);
        continue;
      }
      int32_t result = EINVAL;
      if (kind == CommandKind::kDrop) {
        result = shim::ring::drop(command);
      } else if (kind == CommandKind::kMoveOut || kind == CommandKind::kMoveBack) {
        result = move_command(setup, command);
      } else if (kind == CommandKind::kUnshare) {
        result = unshare(setup, command);
      } else if (kind == CommandKind::kEnd) {
        disarm_lifeline(setup);
        leave(setup);
        result = 0;
      }
      command.result = result;
      shim::ring::publish(ring, ++tail);
      if (kind == CommandKind::kEnd) {
        return;
      }
    }
  }
}

[[noreturn]] void agent_main(AgentSetup* setup) asm("farpage_agent_main")
    __attribute__((section("farpage_agent"), used, flatten));

void agent_main(AgentSetup* setup) {
  auto& ring = *reinterpret_cast<AgentRing*>(setup->shared_address);
  spin_until_begun(*setup);
  auto step = static_cast<AgentStep>(setup->wanted.load(std::memory_order_acquire));
  bool begun = false;
  while (step == AgentStep::kOpen || step == AgentStep::kPrepare) {
    begun = true;
    if (setup->failure == AgentFailure::kNone) {
      if (step == AgentStep::kOpen) {
        open(*setup);
      } else {
        prepare(*setup);
      }
    }
    step = next_step(*setup, step);
  }
  if (step == AgentStep::kServe) {
    ring.agent_thread.store(setup->thread, std::memory_order_release);
    arm_lifeline(*setup);
    setup->done.store(word_of(AgentStep::kServe), std::memory_order_seq_cst);
    system_call(SYS_futex, &setup->done, FUTEX_WAKE, 1);
    serve(*setup, ring);
  } else if (begun) {
    leave(*setup);
  }
  for (;;) {
    system_call(SYS_exit, 0);
  }
}

}  // namespace

std::span<const std::byte> agent_code() {
  return {farpage_agent_begin, farpage_agent_end};
}

size_t agent_clone_offset() {
  return static_cast<size_t>(farpage_agent_clone - farpage_agent_begin);
}

}  // namespace farpage::inject
