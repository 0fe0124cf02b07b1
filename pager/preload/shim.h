// Shim: the far memory of this process, as the interposed functions (interpose.cc) see it.
//
// Everything far lies in one window of address space, reserved and registered with userfaultfd at
// the start. The shim only decides which addresses of it are in use; which page is where is the
// pager's business alone.
//
// Threads: every method from any thread, also from signal handlers. One lock guards the free list,
// the control socket and the number of running forks; no far memory is touched under it. A second
// one makes forks that share wait for each other.
// Invariants:
// 1. A free page of the window is PROT_NONE and empty (MADV_DONTNEED done, the pager told): whoever
//    is given it next reads zeros.
// 2. What lock_ guards makes sense at every instant, also while it is held: a child of fork sees it
//    as it was then, without the thread that held it.
// 3. The window is MADV_DONTFORK unless forks_ > 0: a child that comes about without fork() (a bare
//    clone, forkpty) gets SIGSEGV there, never zeros in place of what is away.
// 4. A range is discarded at the pager before the kernel drops it; if the pager cannot be told, the
//    call fails and nothing is dropped.
#pragma once

#include <sys/types.h>

#include <atomic>

#include "pager/preload/agent.h"
#include "pager/preload/control.h"
#include "pager/preload/lock.h"
#include "pager/preload/ranges.h"
#include "pager/preload/settings.h"
#include "pager/preload/syscalls.h"
#include "pager/preload/userfault.h"

// A function that the program gets in place of libc's.
#define FARPAGE_EXPORT extern "C" __attribute__((visibility("default")))

namespace farpage::preload {

class Shim {
 public:
  constexpr Shim() = default;
  Shim(const Shim&) = delete;
  Shim& operator=(const Shim&) = delete;

  // Whether far memory is in use here; the first call starts it (an allocator may call mmap before
  // any constructor has run). Ends the process when FARPAGE_HANDOVER is set and cannot be obeyed.
  bool active();

  // The part of a range that lies in the window. Valid once active() was true.
  Span far_part(Span span) const { return overlap(window_, span); }
  uint64_t minimum_bytes() const { return minimum_bytes_; }

  // All of these take page-aligned, non-empty spans, and return 0 or an address, or a negative
  // errno.

  // Fresh zeros in the window; 0 when there is no room (said once): take local memory then.
  long map(uint64_t bytes, int protection);
  // Fresh zeros at these very pages of the window, whatever was there.
  long map_at(Span far, int protection);
  // Moves an existing mapping of `bytes` at `from` over `to`, which overlaps the window.
  long overlay(long from, Span to);
  // Takes back what was given; free pages in the span do no harm.
  long unmap(Span far);
  // mremap of a range in the window.
  long remap(Span old, uint64_t new_bytes, bool may_move);
  // The span reads zeros from now on.
  long discard(Span far);
  // The pager is asked to evict, or to bring in. Never fails.
  void hint(uffd::handover::RequestKind kind, Span far);

  pid_t fork();

  // Whether `fd` is one of the shim's own, which the program must not close.
  bool owns_descriptor(int fd) const;
  // The lowest of them in [first, last], or last + 1.
  uint64_t lowest_own_descriptor(unsigned first, unsigned last) const;

 private:
  enum class State : uint32_t { kUnknown, kLocal, kActive };

  // With lock_ held.
  void start(const Settings& settings);
  void reserve_window_or_exit(uint64_t bytes);
  long make_window_memory(Span span);
  long discard_locked(Span far);
  long unmap_locked(Span far);
  long remap_in_place(Span old, uint64_t new_bytes, int protection);

  long move(Span old, uint64_t new_bytes, int protection);
  bool may_hold_other_mappings() const;
  uffd::handover::Hello make_hello() const;
  pid_t fork_copied();
  pid_t fork_shared();
  int refuse_fork(long reason);
  void forget_after_fork();
  void hand_over_after_fork(int socket);

  // Written once, before state_ says kActive (release; pairs with the acquire in active()).
  Span window_;
  uint64_t minimum_bytes_ = 0;
  Userfault userfault_;
  Agent agent_;

  std::atomic<State> state_{State::kUnknown};
  // The program mapped something else into the window: a page is made the window's own again by
  // mapping it afresh. Never reset.
  std::atomic<bool> has_overlays_{false};

  Lock fork_lock_;
  // The child's end of its control socket, while a fork is under way. Guarded by fork_lock_.
  std::atomic<int> child_socket_{-1};

  Lock lock_;
  // Guarded by lock_.
  Ranges free_;
  Control control_;
  int forks_ = 0;
  bool warned_full_ = false;
};

// The one of this process: a function that takes libc's place is called with nothing else to find
// it by. Usable before any constructor has run.
extern Shim shim;

}  // namespace farpage::preload
