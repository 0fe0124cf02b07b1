// Shim: the far memory of this process, as the interposed functions (interpose.cc) see it.
//
// Far memory lies in one window of address space, reserved and registered with userfaultfd at
// start, and in extents: mappings that the program has placed elsewhere itself (extents.cc). The
// shim decides only which addresses of the window are in use; the pager alone decides where each
// page is.
//
// Threads: every method from any thread, also from signal handlers. One lock guards the free list,
// the control socket and the number of running forks; no far memory is touched under it. A second
// one serializes shared forks (fork_shared()).
// Invariants:
// 1. A free page of the window is PROT_NONE and empty (MADV_DONTNEED done, the pager told): its
//    next user reads zeros.
// 2. What lock_ guards is consistent at every instant, also while it is held: a forked child sees
//    that state, without the thread that held it.
// 3. All far memory is MADV_DONTFORK unless forks_ > 0: a child created without fork() (_Fork, a
// bare
//    clone) gets SIGSEGV there, never zeros in place of remote pages.
// 4. A range is discarded at the pager before the kernel drops it; if the pager cannot be told, the
//    call fails and nothing is dropped.
#pragma once

#include <sys/types.h>

#include <atomic>

#include "shim/agent.h"
#include "shim/control.h"
#include "shim/lock.h"
#include "shim/ranges.h"
#include "shim/settings.h"
#include "shim/syscalls.h"
#include "shim/userfault.h"

// A function that replaces libc's in the program.
#define FARPAGE_EXPORT extern "C" __attribute__((visibility("default")))

namespace farpage::shim {

struct Mapping;

class Shim {
 public:
  constexpr Shim() = default;
  Shim(const Shim&) = delete;
  Shim& operator=(const Shim&) = delete;

  // Whether far memory is in use here; the first call starts it (an allocator may call mmap before
  // any constructor has run). Exits if FARPAGE_HANDOVER is set and far memory cannot be started.
  bool active();

  // The lowest part of a range that is far memory; empty: none. Valid once active() was true.
  Span first_far_part(Span span) const;
  // The part of it that lies in the window.
  Span window_part(Span span) const { return overlap(window_, span); }
  uint64_t minimum_bytes() const { return minimum_bytes_; }

  // All of these take page-aligned, non-empty spans, and return 0 or an address, or a negative
  // errno.

  // Maps zeros in the window; 0 if there is no room (reported once): the caller then maps local
  // memory. kRefusedHint: a reservation that the program wanted elsewhere (see insists_on_hints()).
  enum class Placing : bool { kAnywhere, kRefusedHint };
  long map(uint64_t bytes, int protection, Placing placing = Placing::kAnywhere);
  // Maps zeros at exactly these pages of the window, replacing what was there.
  long map_at(Span far, int protection);
  // mmap of anonymous memory at exactly these addresses, outside of the window: MAP_FIXED or
  // MAP_FIXED_NOREPLACE is in the flags. An extent, if possible; else local.
  long map_extent(Span span, int protection, int flags);
  // Moves the local mapping `from` over `to`, which overlaps far memory; it stays local.
  long overlay(Span from, Span to);
  // Frees the span, which is in the window or in an extent; some of its pages may be free already.
  long unmap(Span far);
  // mremap of a range of which a part is far. To its size or less: the rest is unmapped.
  long cut(Span old, uint64_t new_bytes);
  // To more: in place if possible, else to any address.
  long grow(Span old, uint64_t new_bytes, bool may_move);
  // To a given address, far or local, that does not overlap `old`. keep_old: `old` stays mapped, as
  // zeros (MREMAP_DONTUNMAP).
  long remap_to(Span old, Span wanted, bool keep_old);
  // To any address, with keep_old.
  long remap_away(Span old);
  // The span reads zeros from now on. -EINVAL if a part is locked and `advice` is not
  // MADV_DONTNEED_LOCKED.
  long discard(Span far, int advice);
  // Asks the pager to evict (-EINVAL if a part is locked) or to fetch.
  long hint(uffd::handover::RequestKind kind, Span far);
  long expect_access(uffd::handover::RequestKind pattern, Span far);
  // Whether children get the span at all.
  long keep_from_children(Span far, bool keep);
  // Whether they get it as zeros.
  long wipe_in_children(Span far, bool wipe);
  // A mapping in the window has a property that must not remain when its addresses are reused.
  void note_altered() { altered_.store(true, std::memory_order_release); }

  // mlock and its variants (lock_calls.cc). -ENOMEM if the pager refuses to pin so much.
  long lock(Span far, unsigned mlock2_flags);
  void unlock(Span far);
  long lock_all(int mlockall_flags);
  long unlock_all();
  // The kernel is about to pin the span long-term: it is not evicted until it is unmapped.
  long register_buffer(Span far);

  // The program unmapped a reservation at once, unused, because it was not at its hint: it needs
  // the addresses that it asks for. Stays true.
  bool insists_on_hints() const { return insists_on_hints_.load(std::memory_order_relaxed); }

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
  long discard_locked(Span far, int advice);
  long unmap_locked(Span far);
  void make_extent(Span span);
  void make_local(Span span);
  long give_up_extents(Span span);
  long unmap_extent(Span far);
  long grow_extent(Span old, Span more, int protection);
  void advise_all(int advice);  // madvise of the window and the extents
  void note_given_back(Span far);
  void forget_wishes(Span far);
  void unlock_locked(Span far);
  void repin();
  long grow_in_place(Span old, Span more, int protection);
  void keep_wishes_from_children();

  // Without lock_.
  long take(uint64_t bytes, int protection, Placing placing);
  long lock_as_future(Span far, int protection);
  long find_used(Span span, Mapping& mapping);
  long movable(Span old, int& protection);
  long move(Span old, Span to, int protection, bool keep_old);
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
  // The program mapped something else into the window, or gave a part of it a property that
  // mprotect does not remove: unmap then replaces the pages by a new mapping. Never reset.
  std::atomic<bool> altered_{false};
  std::atomic<bool> insists_on_hints_{false};  // set under lock_
  std::atomic<int> future_lock_{0};            // MCL_* of the last mlockall that had MCL_FUTURE

  Lock fork_lock_;
  // The child's end of its control socket, during a fork. Guarded by fork_lock_.
  std::atomic<int> child_socket_{-1};

  std::atomic<bool> has_extents_{false};  // set under lock_; never reset

  mutable Lock lock_;
  // Guarded by lock_.
  Ranges free_;
  Ranges extents_;
  Ranges locked_;      // mlock; pinned at the pager
  Ranges registered_;  // by register_buffer(); pinned at the pager
  Ranges advised_;     // RANDOM or SEQUENTIAL; the pager has the pattern
  Ranges childless_;   // MADV_DONTFORK
  Ranges wiped_;       // MADV_WIPEONFORK
  Span refused_hint_;  // the last mapping, if it was Placing::kRefusedHint and is still there
  Control control_;
  int forks_ = 0;
  bool warned_full_ = false;
};

// The only one of this process: interposed functions have no other way to find it. Usable before
// any constructor has run.
extern Shim shim;

}  // namespace farpage::shim
