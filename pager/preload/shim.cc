#include "pager/preload/shim.h"

#include <errno.h>
#include <sys/mman.h>

#include "pager/preload/mappings.h"
#include "pager/preload/report.h"

namespace farpage::preload {

using uffd::handover::RequestKind;

namespace {

// Allocators want their segments aligned to their size, mimalloc to 32 MiB. Given at once, they
// need not map twice the size and trim it. Smaller ones fill the holes as they are.
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

long drop(Span span) {
  const long dropped = system_call(SYS_madvise, span.begin, span.bytes(), MADV_DONTNEED);
  if (dropped != -EINVAL) {
    return dropped;
  }
  // EINVAL is mlocked memory. It is given up all the same, as munmap would.
  system_call(SYS_munlock, span.begin, span.bytes());
  return system_call(SYS_madvise, span.begin, span.bytes(), MADV_DONTNEED);
}

}  // namespace

long Shim::map(uint64_t bytes, int protection) {
  const Locked locked(lock_);
  const Span span = free_.find(bytes, alignment_for(bytes));
  if (span.empty()) {
    if (!warned_full_) {
      warned_full_ = true;
      Report()
          .text("no room for ")
          .number(bytes)
          .text(" bytes in the far window of ")
          .number(window_.bytes())
          .text(
              "; this and what else does not fit stays in local memory (raise "
              "FARPAGE_WINDOW_BYTES)")
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
  const Locked locked(lock_);
  if (const long emptied = unmap_locked(far); is_error(emptied)) {
    return emptied;
  }
  if (!free_.remove(far)) {
    return -ENOMEM;
  }
  const long opened = system_call(SYS_mprotect, far.begin, far.bytes(), protection);
  return is_error(opened) ? opened : static_cast<long>(far.begin);
}

long Shim::overlay(long from, Span to) {
  const Locked locked(lock_);
  const Span far = far_part(to);
  if (const long told = control_.request(RequestKind::kDiscard, far); is_error(told)) {
    return told;
  }
  if (!free_.remove(far)) {
    return -ENOMEM;
  }
  has_overlays_.store(true, std::memory_order_release);
  return system_call(SYS_mremap, from, to.bytes(), to.bytes(), MREMAP_MAYMOVE | MREMAP_FIXED,
                     to.begin);
}

long Shim::unmap(Span far) {
  const Locked locked(lock_);
  return unmap_locked(far);
}

long Shim::discard(Span far) {
  const Locked locked(lock_);
  return discard_locked(far);
}

long Shim::discard_locked(Span far) {
  const long told = control_.request(RequestKind::kDiscard, far);
  return is_error(told) ? told : drop(far);
}

bool Shim::may_hold_other_mappings() const {
  return has_overlays_.load(std::memory_order_acquire) || agent_.has_poisoned();
}

long Shim::unmap_locked(Span far) {
  if (free_.all_free(far)) {
    return 0;
  }
  if (may_hold_other_mappings()) {
    const long told = control_.request(RequestKind::kDiscard, far);
    if (is_error(told)) {
      return told;
    }
    const long mapped = system_call(SYS_mmap, far.begin, far.bytes(), PROT_NONE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    const long made = is_error(mapped) ? mapped : make_window_memory(far);
    if (is_error(made)) {
      return made;
    }
  } else {
    const long dropped = discard_locked(far);
    if (is_error(dropped)) {
      return dropped;
    }
    // Fails only when the kernel has no mapping left to split. The range is empty all the same.
    system_call(SYS_mprotect, far.begin, far.bytes(), PROT_NONE);
  }
  free_.add(far);  // with a full array the addresses are lost, not the memory
  return 0;
}

void Shim::hint(RequestKind kind, Span far) {
  const Locked locked(lock_);
  control_.request(kind, far);
}

long Shim::remap(Span old, uint64_t new_bytes, bool may_move) {
  Mapping mapping;
  if (const long found = find_mapping(old, mapping); is_error(found)) {
    return found;
  }
  if (!mapping.anonymous || !mapping.span.contains(old)) {
    return -EFAULT;  // as the kernel answers for a range over several mappings
  }
  {
    const Locked locked(lock_);
    if (free_.any_free(old)) {
      return -EFAULT;
    }
    const long result = remap_in_place(old, new_bytes, mapping.protection);
    if (result != -ENOMEM || !may_move) {
      return result;
    }
  }
  return move(old, new_bytes, mapping.protection);
}

// -ENOMEM when the next pages are not free.
long Shim::remap_in_place(Span old, uint64_t new_bytes, int protection) {
  const long same = static_cast<long>(old.begin);
  const Span wanted{old.begin, old.begin + new_bytes};
  if (wanted.end <= old.end) {
    const Span tail{wanted.end, old.end};
    const long cut = tail.empty() ? 0 : unmap_locked(tail);
    return is_error(cut) ? cut : same;
  }
  const Span more{old.end, wanted.end};
  if (!free_.all_free(more) || !free_.remove(more)) {
    return -ENOMEM;
  }
  const long opened = system_call(SYS_mprotect, more.begin, more.bytes(), protection);
  if (is_error(opened)) {
    free_.add(more);
    return opened;
  }
  return same;
}

// No lock: the copy touches far memory. A program that uses the range meanwhile is wrong with the
// real mremap too.
long Shim::move(Span old, uint64_t new_bytes, int protection) {
  long to = map(new_bytes, PROT_READ | PROT_WRITE);
  if (to == 0) {
    to = system_call(SYS_mmap, nullptr, new_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (is_error(to)) {
    return to;
  }
  if ((protection & PROT_READ) == 0) {
    system_call(SYS_mprotect, old.begin, old.bytes(), PROT_READ);
  }
  const uint64_t* from = reinterpret_cast<const uint64_t*>(old.begin);
  uint64_t* into = reinterpret_cast<uint64_t*>(to);
  constexpr uint64_t kPageWords = kPageBytes / sizeof(uint64_t);
  for (uint64_t page = 0; page < old.bytes() / kPageBytes; ++page) {
    uint64_t any_bit = 0;
    for (uint64_t i = 0; i < kPageWords; ++i) {
      any_bit |= from[page * kPageWords + i];
    }
    // What is zero is not written, so that an empty page stays one.
    for (uint64_t i = 0; any_bit != 0 && i < kPageWords; ++i) {
      into[page * kPageWords + i] = from[page * kPageWords + i];
    }
  }
  if (protection != (PROT_READ | PROT_WRITE)) {
    system_call(SYS_mprotect, to, new_bytes, protection);
  }
  const long freed = unmap(old);
  return is_error(freed) ? freed : to;
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

}  // namespace farpage::preload
