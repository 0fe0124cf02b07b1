// mremap. The kernel's call would move far pages without telling the pager. The shim
// copies far memory instead, which fetches remote pages.
#include <errno.h>
#include <sys/mman.h>

#include "shim/mappings.h"
#include "shim/memory_calls.h"
#include "shim/shim.h"

namespace farpage::shim {

namespace {

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4  // Linux 5.7
#endif

// Does not write zero pages, so that an empty page stays empty.
void copy_pages(Span from, uint64_t to) {
  const uint64_t* source = reinterpret_cast<const uint64_t*>(from.begin);
  uint64_t* target = reinterpret_cast<uint64_t*>(to);
  constexpr uint64_t kPageWords = kPageBytes / sizeof(uint64_t);
  for (uint64_t page = 0; page < from.bytes() / kPageBytes; ++page) {
    uint64_t any_bit = 0;
    for (uint64_t i = 0; i < kPageWords; ++i) {
      any_bit |= source[page * kPageWords + i];
    }
    for (uint64_t i = 0; any_bit != 0 && i < kPageWords; ++i) {
      target[page * kPageWords + i] = source[page * kPageWords + i];
    }
  }
}

}  // namespace

// Gets the protection of `old`. -EFAULT, as from the kernel, if it is not one whole mapping.
long Shim::movable(Span old, int& protection) {
  Mapping mapping;
  if (const long found = find_mapping(old, mapping); is_error(found)) {
    return found;
  }
  protection = mapping.protection;
  const Locked locked(lock_);
  const bool whole = mapping.anonymous && mapping.span.contains(old) && !free_.intersects(old);
  return whole ? 0 : -EFAULT;
}

long Shim::remap(Span old, uint64_t new_bytes, bool may_move) {
  int protection = 0;
  if (const long refused = movable(old, protection); is_error(refused)) {
    return refused;
  }
  {
    const Locked locked(lock_);
    const long result = remap_in_place(old, new_bytes, protection);
    if (result != -ENOMEM || !may_move) {
      return result;
    }
  }
  const long to =
      shim::map({nullptr, new_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0});
  if (is_error(to)) {
    return to;
  }
  const uint64_t begin = static_cast<uint64_t>(to);
  return move(old, {begin, begin + new_bytes}, protection, false);
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
  if (window_part(old).empty()) {
    return grow_extent(old, more, protection);
  }
  // Locked memory moves instead: the new part must be locked too, and not under our lock.
  if (locked_.intersects(old) || !free_.contains(more) || !free_.remove(more)) {
    return -ENOMEM;
  }
  const long opened = system_call(SYS_mprotect, more.begin, more.bytes(), protection);
  if (is_error(opened)) {
    free_.add(more);
    return opened;
  }
  return same;
}

long Shim::remap_to(Span old, Span wanted, bool keep_old) {
  int protection = 0;
  if (const long refused = movable(old, protection); is_error(refused)) {
    return refused;
  }
  const long to =
      shim::map({reinterpret_cast<void*>(wanted.begin), wanted.bytes(), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0});
  return is_error(to) ? to : move(old, wanted, protection, keep_old);
}

long Shim::remap_away(Span old, bool keep_old) {
  int protection = 0;
  if (const long refused = movable(old, protection); is_error(refused)) {
    return refused;
  }
  const long to =
      shim::map({nullptr, old.bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0});
  if (is_error(to)) {
    return to;
  }
  const uint64_t begin = static_cast<uint64_t>(to);
  return move(old, {begin, begin + old.bytes()}, protection, keep_old);
}

// Copies `old` to the fresh, writable pages at `to`, then unmaps or discards it. No lock: the copy
// touches far memory. A program that uses the range meanwhile is wrong with the real mremap too.
long Shim::move(Span old, Span to, int protection, bool keep_old) {
  bool was_locked = false;
  {
    const Locked locked(lock_);
    was_locked = locked_.intersects(old);
  }
  if (was_locked) {
    if (const long refused = lock_memory(reinterpret_cast<void*>(to.begin), to.bytes(), 0);
        is_error(refused)) {
      shim::unmap(reinterpret_cast<void*>(to.begin), to.bytes());
      return -EAGAIN;
    }
  }
  if ((protection & PROT_READ) == 0) {
    system_call(SYS_mprotect, old.begin, old.bytes(), PROT_READ);
  }
  const uint64_t kept_bytes = old.bytes() < to.bytes() ? old.bytes() : to.bytes();
  copy_pages({old.begin, old.begin + kept_bytes}, to.begin);
  if (protection != (PROT_READ | PROT_WRITE)) {
    system_call(SYS_mprotect, to.begin, to.bytes(), protection);
  }
  long freed = 0;
  if (keep_old) {
    unlock(old);
    freed = discard(old, MADV_DONTNEED);
    system_call(SYS_mprotect, old.begin, old.bytes(), protection);
  } else {
    freed = unmap(old);
  }
  return is_error(freed) ? freed : static_cast<long>(to.begin);
}

long remap(void* address, size_t old_length, size_t new_length, int flags, void* new_address) {
  const auto by_kernel = [&] {
    return system_call(SYS_mremap, address, old_length, new_length, flags, new_address);
  };
  if (!shim.active()) {
    return by_kernel();
  }
  const bool fixed = (flags & MREMAP_FIXED) != 0;
  const bool keep_old = (flags & MREMAP_DONTUNMAP) != 0;
  const Span old = pages_of(address, old_length > 0 ? old_length : 1);
  const Span wanted = fixed ? pages_of(new_address, new_length) : Span{};
  const Span far = shim.first_far_part(old);
  const bool onto_far = !shim.first_far_part(wanted).empty();
  if (far.empty() && !onto_far) {
    return by_kernel();
  }
  // What the kernel would refuse.
  constexpr int kKnown = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  const uint64_t new_bytes = round_up_to_page(new_length);
  const bool may_move = (flags & MREMAP_MAYMOVE) != 0;
  if (old.empty() || old_length == 0 || new_length == 0 || new_bytes < new_length ||
      (flags & ~kKnown) != 0 || ((fixed || keep_old) && !may_move) ||
      (keep_old && old.bytes() != new_bytes) ||
      (fixed && (wanted.empty() || !overlap(old, wanted).empty()))) {
    return -EINVAL;
  }
  if (far.empty()) {
    // MREMAP_DONTUNMAP onto far memory would need two calls; no known program does it.
    return keep_old ? -EINVAL : shim.overlay(old, wanted);
  }
  if (!far.contains(old)) {
    return -EFAULT;
  }
  if (fixed) {
    return shim.remap_to(old, wanted, keep_old);
  }
  return keep_old ? shim.remap_away(old, true) : shim.remap(old, new_bytes, may_move);
}

}  // namespace farpage::shim
