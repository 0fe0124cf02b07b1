#include "shim/shim.h"

#include <errno.h>
#include <sys/mman.h>

#include "shim/mappings.h"
#include "shim/report.h"

namespace farpage::shim {

using uffd::handover::RequestKind;

namespace {

// Allocators want their segments aligned to their size, mimalloc to 32 MiB. With aligned mappings
// they need not map twice the size and trim it. Smaller mappings fill holes at any page.
constexpr uint64_t kMinAlignedBytes = 1 << 20;
constexpr uint64_t kMaxAlignment = 32 << 20;

uint64_t alignment_for(uint64_t bytes) {
  if (bytes < kMinAlignedBytes) {
    return kPageBytes;
  }
  uint64_t alignment = kMinAlignedBytes;
  while (alignment < kMaxAlignment && alignment * 2 <= bytes) {
    alignment *= 2;
  }
  return alignment;
}

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24  // Linux 5.18
#endif

}  // namespace

long Shim::map(uint64_t bytes, int protection, Placing placing) {
  const long begin = take(bytes, protection, placing);
  if (begin == 0 || is_error(begin)) {
    return begin;
  }
  const Span span{static_cast<uint64_t>(begin), static_cast<uint64_t>(begin) + bytes};
  const long result = lock_as_future(span, protection);
  if (is_error(result)) {
    unmap(span);
    return result;
  }
  return begin;
}

long Shim::take(uint64_t bytes, int protection, Placing placing) {
  const Locked locked(lock_);
  const Span span = free_.find(bytes, alignment_for(bytes));
  refused_hint_ = placing == Placing::kRefusedHint ? span : Span{};
  if (span.empty()) {
    if (!warned_full_) {
      warned_full_ = true;
      Report()
          .text("no room for ")
          .number(bytes)
          .text(" bytes in the far window of ")
          .number(window_.bytes())
          .text("; this and further memory that does not fit stays local (raise --window)")
          .write();
    }
    return 0;
  }
  if (protection != PROT_NONE) {
    const long opened = system_call(SYS_mprotect, span.begin, span.bytes(), protection);
    if (is_error(opened)) {
      return opened;
    }
  }
  return free_.remove(span) ? static_cast<long>(span.begin) : 0;
}

long Shim::map_at(Span far, int protection) {
  {
    const Locked locked(lock_);
    if (const long emptied = unmap_locked(far); is_error(emptied)) {
      return emptied;
    }
    if (!free_.remove(far)) {
      return -ENOMEM;
    }
    const long opened = system_call(SYS_mprotect, far.begin, far.bytes(), protection);
    if (is_error(opened)) {
      return opened;
    }
  }
  const long result = lock_as_future(far, protection);
  return is_error(result) ? result : static_cast<long>(far.begin);
}

long Shim::overlay(Span from, Span to) {
  const Locked locked(lock_);
  if (const long given_up = give_up_extents(to); is_error(given_up)) {
    return given_up;
  }
  if (const Span far = window_part(to); !far.empty()) {
    forget_wishes(far);
    if (const long told = control_.request(RequestKind::kDiscard, far); is_error(told)) {
      return told;
    }
    if (!free_.remove(far)) {
      return -ENOMEM;
    }
    note_altered();
  }
  return system_call(SYS_mremap, from.begin, from.bytes(), to.bytes(),
                     MREMAP_MAYMOVE | MREMAP_FIXED, to.begin);
}

long Shim::unmap(Span far) {
  const Locked locked(lock_);
  note_given_back(far);
  return unmap_locked(far);
}

// If refused_hint_ is set, no far mapping was made or unmapped since the reservation. If it is
// still PROT_NONE, the program has not used it and unmaps it because of its address.
void Shim::note_given_back(Span far) {
  Mapping mapping;
  if (!far.empty() && far.begin == refused_hint_.begin && far.end == refused_hint_.end &&
      !is_error(find_mapping(far, mapping)) && mapping.protection == PROT_NONE &&
      mapping.span.contains(far)) {
    insists_on_hints_.store(true, std::memory_order_relaxed);
  }
  refused_hint_ = {};
}

long Shim::discard(Span far, int advice) {
  const Locked locked(lock_);
  if (advice != MADV_DONTNEED_LOCKED && locked_.intersects(far)) {
    return -EINVAL;
  }
  return discard_locked(far, advice);
}

long Shim::discard_locked(Span far, int advice) {
  const long told = control_.request(RequestKind::kDiscard, far);
  return is_error(told) ? told : system_call(SYS_madvise, far.begin, far.bytes(), advice);
}

bool Shim::may_hold_other_mappings() const {
  return altered_.load(std::memory_order_acquire) || agent_.has_poisoned();
}

long Shim::unmap_locked(Span far) {
  if (window_part(far).empty()) {
    return unmap_extent(far);
  }
  if (free_.contains(far)) {
    return 0;
  }
  forget_wishes(far);
  if (may_hold_other_mappings()) {
    const long told = control_.request(RequestKind::kDiscard, far);
    if (is_error(told)) {
      return told;
    }
    const long mapped = system_call(SYS_mmap, far.begin, far.bytes(), PROT_NONE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (future_lock_.load(std::memory_order_relaxed) != 0) {
      system_call(SYS_munlock, far.begin, far.bytes());  // the kernel locks new mappings now
    }
    const long made = is_error(mapped) ? mapped : make_window_memory(far);
    if (is_error(made)) {
      return made;
    }
  } else {
    const long dropped = discard_locked(far, MADV_DONTNEED);
    if (is_error(dropped)) {
      return dropped;
    }
    // Fails only at the kernel's limit of mappings. The range is empty in any case.
    system_call(SYS_mprotect, far.begin, far.bytes(), PROT_NONE);
  }
  free_.add(far);  // if the array is full, the addresses leak, not the memory
  return 0;
}

// Drops the locks, registrations and advice of these pages.
void Shim::forget_wishes(Span far) {
  unlock_locked(far);
  if (registered_.intersects(far)) {
    registered_.remove(far);
    control_.request(RequestKind::kUnpin, far);
  }
  childless_.remove(far);
  wiped_.remove(far);
  if (advised_.intersects(far)) {
    advised_.remove(far);
    control_.request(RequestKind::kNormalAccess, far);
  }
}

long Shim::hint(RequestKind kind, Span far) {
  const Locked locked(lock_);
  if (kind == RequestKind::kColdHint && locked_.intersects(far)) {
    return -EINVAL;
  }
  control_.request(kind, far);  // only a hint: errors are ignored
  return 0;
}

long Shim::expect_access(RequestKind pattern, Span far) {
  const Locked locked(lock_);
  if (pattern == RequestKind::kNormalAccess) {
    if (!advised_.intersects(far)) {
      return 0;
    }
    advised_.remove(far);
  } else if (!advised_.add(far)) {
    return 0;
  }
  control_.request(pattern, far);
  return 0;
}

long Shim::keep_from_children(Span far, bool keep) {
  const Locked locked(lock_);
  return (keep ? childless_.add(far) : childless_.remove(far)) ? 0 : -ENOMEM;
}

long Shim::wipe_in_children(Span far, bool wipe) {
  const Locked locked(lock_);
  if (!(wipe ? wiped_.add(far) : wiped_.remove(far))) {
    return -ENOMEM;
  }
  note_altered();
  return system_call(SYS_madvise, far.begin, far.bytes(), wipe ? MADV_WIPEONFORK : MADV_KEEPONFORK);
}

void Shim::keep_wishes_from_children() {
  childless_.for_each_in(kEverything, [](Span span) {
    system_call(SYS_madvise, span.begin, span.bytes(), MADV_DONTFORK);
  });
}

bool Shim::owns_descriptor(int fd) const {
  return fd >= 0 && state_.load(std::memory_order_acquire) == State::kActive &&
         (fd == userfault_.fd || fd == control_.fd() ||
          fd == child_socket_.load(std::memory_order_relaxed));
}

uint64_t Shim::lowest_own_descriptor(unsigned first, unsigned last) const {
  uint64_t lowest = uint64_t{last} + 1;
  for (const int own :
       {userfault_.fd, control_.fd(), child_socket_.load(std::memory_order_relaxed)}) {
    if (owns_descriptor(own) && static_cast<unsigned>(own) >= first &&
        static_cast<unsigned>(own) < lowest) {
      lowest = static_cast<unsigned>(own);
    }
  }
  return lowest;
}

}  // namespace farpage::shim
