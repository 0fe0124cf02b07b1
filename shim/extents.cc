// Far memory outside of the window: mappings that the program has placed itself, by MAP_FIXED or at
// an address that it insists on. Each is a mapping of the kernel's, registered like the window.
#include <errno.h>
#include <sys/mman.h>

#include "shim/shim.h"

namespace farpage::shim {

using uffd::handover::RequestKind;

Span Shim::first_far_part(Span span) const {
  const Span in_window = window_part(span);
  if (!has_extents_.load(std::memory_order_acquire)) {
    return in_window;
  }
  const Span in_extents = extents_.first_in_unlocked(span);
  const bool window_first =
      in_extents.empty() || (!in_window.empty() && in_window.begin < in_extents.begin);
  return window_first ? in_window : in_extents;
}

long Shim::map_extent(Span span, int protection, int flags) {
  const Locked locked(lock_);
  if (!window_part(span).empty()) {
    return -EEXIST;
  }
  if ((flags & MAP_FIXED_NOREPLACE) != MAP_FIXED_NOREPLACE) {
    if (const long given_up = give_up_extents(span); is_error(given_up)) {
      return given_up;
    }
  }
  // The kernel replaces what is there in one step. Pages that it allocated now would be unknown to
  // the pager.
  const long mapped =
      system_call(SYS_mmap, span.begin, span.bytes(), protection, flags & ~MAP_POPULATE, -1, 0);
  if (mapped == static_cast<long>(span.begin)) {
    make_extent(span);
  }
  return mapped;
}

// What is mapped there, empty, becomes far if possible; else it stays local. The kernel fills new
// mappings itself after mlockall(MCL_FUTURE), and a child must have the extents that its parent
// has.
void Shim::make_extent(Span span) {
  if (forks_ > 0 || future_lock_.load(std::memory_order_relaxed) != 0 ||
      is_error(control_.request(RequestKind::kAddExtent, span))) {
    return;
  }
  if (is_error(make_window_memory(span)) || !extents_.add(span)) {
    make_local(span);
    return;
  }
  has_extents_.store(true, std::memory_order_release);
}

// Until the registration has ended, the pager answers faults there; then it forgets the range. So
// no fault is left to it that it does not know, and unmapping the range raises no event.
void Shim::make_local(Span span) {
  unregister_span(userfault_.fd, span);
  system_call(SYS_madvise, span.begin, span.bytes(), MADV_DOFORK);
  control_.request(RequestKind::kRemoveExtent, span);
}

// The pager forgets the extents in the span, and their contents; what is mapped there stays.
long Shim::give_up_extents(Span span) {
  for (Span part = extents_.first_in(span); !part.empty(); part = extents_.first_in(span)) {
    forget_wishes(part);
    if (const long told = control_.request(RequestKind::kDiscard, part); is_error(told)) {
      return told;
    }
    if (!extents_.remove(part)) {
      return -ENOMEM;
    }
    make_local(part);
  }
  return 0;
}

long Shim::unmap_extent(Span far) {
  if (const long given_up = give_up_extents(far); is_error(given_up)) {
    return given_up;
  }
  const long unmapped = system_call(SYS_munmap, far.begin, far.bytes());
  if (is_error(unmapped)) {  // the kernel's limit of mappings: it stays, and is empty
    system_call(SYS_madvise, far.begin, far.bytes(), MADV_DONTNEED);
    make_extent(far);
  }
  return unmapped;
}

// For mremap in place. -ENOMEM: something else is there, or (as in the window) it is locked.
long Shim::grow_extent(Span old, Span more, int protection) {
  if (locked_.intersects(old)) {
    return -ENOMEM;
  }
  const long mapped =
      system_call(SYS_mmap, more.begin, more.bytes(), protection,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (mapped != static_cast<long>(more.begin)) {
    return -ENOMEM;
  }
  make_extent(more);
  return static_cast<long>(old.begin);
}

void Shim::advise_all(int advice) {
  system_call(SYS_madvise, window_.begin, window_.bytes(), advice);
  extents_.for_each_in(kEverything, [advice](Span span) {
    system_call(SYS_madvise, span.begin, span.bytes(), advice);
  });
}

}  // namespace farpage::shim
