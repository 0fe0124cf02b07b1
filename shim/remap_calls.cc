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

void* pointer_to(Span span) {
  return reinterpret_cast<void*>(span.begin);
}

// The pages of `old` that are in `to` afterwards.
Span kept_in(Span old, Span to) {
  return {old.begin, old.begin + (old.bytes() < to.bytes() ? old.bytes() : to.bytes())};
}

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

// What is mapped from the span's start on. -EFAULT, as from the kernel, if nothing is there, or if
// a part of the span is free in the window.
long Shim::find_used(Span span, Mapping& mapping) {
  const long found = find_mapping(span, mapping);
  const Locked locked(lock_);
  return free_.intersects(span) ? -EFAULT : found;
}

// Gets the protection of `old`. -EFAULT, as from the kernel, if it is not one whole mapping. Far
// memory beside local memory is one if the kernel would have merged them: both anonymous, with one
// protection.
long Shim::movable(Span old, int& protection) {
  Mapping mapping;
  if (const long found = find_used(old, mapping); is_error(found)) {
    return found;
  }
  protection = mapping.protection;
  return mapping.anonymous && mapping.span.contains(old) ? 0 : -EFAULT;
}

long Shim::cut(Span old, uint64_t new_bytes) {
  Mapping mapping;
  const Span first{old.begin, old.begin + kPageBytes};
  if (const long found = find_used(first, mapping); is_error(found)) {
    return found;
  }
  const Span tail{old.begin + new_bytes, old.end};
  const long unmapped = tail.empty() ? 0 : shim::unmap(pointer_to(tail), tail.bytes());
  return is_error(unmapped) ? unmapped : static_cast<long>(old.begin);
}

long Shim::grow(Span old, uint64_t new_bytes, bool may_move) {
  int protection = 0;
  if (const long refused = movable(old, protection); is_error(refused)) {
    return refused;
  }
  {
    const Locked locked(lock_);
    const long result = grow_in_place(old, {old.end, old.begin + new_bytes}, protection);
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

// -ENOMEM when the next pages, `more`, are not free.
long Shim::grow_in_place(Span old, Span more, int protection) {
  if (window_part({old.end - kPageBytes, old.end}).empty()) {
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
  return static_cast<long>(old.begin);
}

long Shim::remap_to(Span old, Span wanted, bool keep_old) {
  int protection = 0;
  if (const long refused = movable(kept_in(old, wanted), protection); is_error(refused)) {
    return refused;
  }
  const long to =
      shim::map({reinterpret_cast<void*>(wanted.begin), wanted.bytes(), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0});
  return is_error(to) ? to : move(old, wanted, protection, keep_old);
}

long Shim::remap_away(Span old) {
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
  return move(old, {begin, begin + old.bytes()}, protection, true);
}

// Copies `old` to the fresh, writable pages at `to`, then unmaps or discards it.
// No lock: the copy touches far memory. A program that uses the range meanwhile is wrong with the
// real mremap too.
long Shim::move(Span old, Span to, int protection, bool keep_old) {
  bool was_locked = false;
  {
    const Locked locked(lock_);
    was_locked = locked_.intersects(old);
  }
  if (was_locked) {
    if (const long refused = lock_memory(pointer_to(to), to.bytes(), 0); is_error(refused)) {
      shim::unmap(pointer_to(to), to.bytes());
      return -EAGAIN;
    }
  }
  if ((protection & PROT_READ) == 0) {
    system_call(SYS_mprotect, old.begin, old.bytes(), PROT_READ);
  }
  copy_pages(kept_in(old, to), to.begin);
  if (protection != (PROT_READ | PROT_WRITE)) {
    system_call(SYS_mprotect, to.begin, to.bytes(), protection);
  }
  long freed = 0;
  if (keep_old) {
    unlock_memory(pointer_to(old), old.bytes());
    freed = advise(pointer_to(old), old.bytes(), MADV_DONTNEED);
    system_call(SYS_mprotect, old.begin, old.bytes(), protection);
  } else {
    freed = shim::unmap(pointer_to(old), old.bytes());
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
  if (old.empty() || old_length == 0 || pages_of(address, new_length).empty() ||
      (flags & ~kKnown) != 0 || ((fixed || keep_old) && !may_move) ||
      (keep_old && old.bytes() != new_bytes) ||
      (fixed && (wanted.empty() || !overlap(old, wanted).empty()))) {
    return -EINVAL;
  }
  if (far.empty()) {
    // MREMAP_DONTUNMAP onto far memory would need two calls; no known program does it.
    return keep_old ? -EINVAL : shim.overlay(old, wanted);
  }
  if (fixed) {
    return shim.remap_to(old, wanted, keep_old);
  }
  if (keep_old) {
    return shim.remap_away(old);
  }
  return new_bytes <= old.bytes() ? shim.cut(old, new_bytes) : shim.grow(old, new_bytes, may_move);
}

}  // namespace farpage::shim
