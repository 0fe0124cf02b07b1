// The functions that take libc's place in the program. Each is as thread-safe as the one it
// replaces, leaves errno alone unless it fails, and does nothing of its own without
// FARPAGE_HANDOVER.
//
// Not here: calls that libc makes inside (thread stacks, its own malloc), and bare system calls.
// What forks is in fork.cc.
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pager/preload/report.h"
#include "pager/preload/shim.h"

extern "C" int __close(int fd);  // libc's own close, under its other public name

namespace farpage::preload {

constinit Shim shim;

namespace {

using uffd::handover::RequestKind;

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24  // Linux 5.18
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102  // Linux 6.13
#endif

// Mappings with one of these have properties that far memory has not.
constexpr int kLocalFlags = MAP_GROWSDOWN | MAP_HUGETLB | MAP_LOCKED | MAP_STACK
#ifdef MAP_32BIT
                            | MAP_32BIT
#endif
    ;
constexpr int kProtections = PROT_READ | PROT_WRITE | PROT_EXEC;

struct MapCall {
  void* address;
  size_t length;
  int protection;
  int flags;
  int fd;
  off_t offset;

  bool may_be_far() const {
    return (flags & (MAP_ANONYMOUS | MAP_PRIVATE)) == (MAP_ANONYMOUS | MAP_PRIVATE) &&
           (flags & kLocalFlags) == 0 && (protection & ~kProtections) == 0 && length > 0;
  }
  long local(int other_flags, void* other_address) const {
    return system_call(SYS_mmap, other_address, length, protection, other_flags, fd, offset);
  }
  long local() const { return local(flags, address); }
};

uint64_t address_of(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

// The pages that a call names; empty when the kernel would refuse them, as it then shall.
Span pages_of(const void* address, size_t length) {
  const uint64_t begin = address_of(address);
  const uint64_t bytes = round_up_to_page(length);
  if (begin % kPageBytes != 0 || bytes < length || begin + bytes < begin) {
    return {};
  }
  return {begin, begin + bytes};
}

long map_fixed(const MapCall& call) {
  const Span wanted = pages_of(call.address, call.length);
  const Span far = shim.far_part(wanted);
  if (far.empty()) {
    return call.local();
  }
  if (call.may_be_far() && far.contains(wanted)) {
    return shim.map_at(far, call.protection);
  }
  // Mapped elsewhere first and moved here, so that nothing is lost when the kernel refuses it.
  const long elsewhere = call.local(call.flags & ~MAP_FIXED, nullptr);
  if (is_error(elsewhere)) {
    return elsewhere;
  }
  const long moved = shim.overlay(elsewhere, wanted);
  if (is_error(moved)) {
    system_call(SYS_munmap, elsewhere, wanted.bytes());
  }
  return moved;
}

long map(const MapCall& call) {
  if (!shim.active() || (call.flags & MAP_FIXED_NOREPLACE) == MAP_FIXED_NOREPLACE) {
    return call.local();
  }
  if ((call.flags & MAP_FIXED) != 0) {
    return map_fixed(call);
  }
  const uint64_t bytes = round_up_to_page(call.length);
  if (!call.may_be_far() || call.length < shim.minimum_bytes() || bytes < call.length) {
    return call.local();
  }
  const long far = shim.map(bytes, call.protection);
  return far != 0 ? far : call.local();
}

// Calls `local` for what lies before and behind the window; the first failure counts.
template <typename Local>
long on_both_sides(Span wanted, Span far, Local local) {
  long result = 0;
  for (const Span side : {Span{wanted.begin, far.begin}, Span{far.end, wanted.end}}) {
    if (!side.empty() && !is_error(result)) {
      result = local(side);
    }
  }
  return result;
}

long unmap(void* address, size_t length) {
  const auto local = [](Span span) { return system_call(SYS_munmap, span.begin, span.bytes()); };
  const Span wanted = pages_of(address, length);
  const Span far = shim.active() ? shim.far_part(wanted) : Span{};
  if (far.empty()) {
    return system_call(SYS_munmap, address, length);
  }
  const long result = shim.unmap(far);
  return is_error(result) ? result : on_both_sides(wanted, far, local);
}

long refuse_remap(const char* what) {
  Report().text("mremap with ").text(what).text(" on far memory is not supported").write();
  return -ENOMEM;
}

long remap(void* address, size_t old_length, size_t new_length, int flags, void* new_address) {
  const auto local = [&] {
    return system_call(SYS_mremap, address, old_length, new_length, flags, new_address);
  };
  if (!shim.active()) {
    return local();
  }
  const Span old = pages_of(address, old_length > 0 ? old_length : 1);
  const Span far = shim.far_part(old);
  const bool onto_far =
      (flags & MREMAP_FIXED) != 0 && !shim.far_part(pages_of(new_address, new_length)).empty();
  if (onto_far) {
    return refuse_remap("MREMAP_FIXED");
  }
  if (far.empty()) {
    return local();
  }
  if ((flags & ~MREMAP_MAYMOVE) != 0) {
    return refuse_remap("MREMAP_FIXED or MREMAP_DONTUNMAP");
  }
  const uint64_t new_bytes = round_up_to_page(new_length);
  if (old_length == 0 || new_length == 0 || new_bytes < new_length) {
    return -EINVAL;
  }
  return far.contains(old) ? shim.remap(old, new_bytes, (flags & MREMAP_MAYMOVE) != 0) : -EFAULT;
}

long advise_far(Span far, int advice) {
  switch (advice) {
    case MADV_DONTNEED:
    case MADV_DONTNEED_LOCKED:
    case MADV_FREE:
      return shim.discard(far);
    case MADV_COLD:
    case MADV_PAGEOUT:
      shim.hint(RequestKind::kColdHint, far);
      return 0;
    case MADV_WILLNEED:
      shim.hint(RequestKind::kWillNeedHint, far);
      return 0;
    // What the shim itself has set on the window and must keep, and what would make huge or shared
    // pages behind the pager's back. All of these are wishes: done as far as they can be.
    case MADV_DOFORK:
    case MADV_DONTFORK:
    case MADV_HUGEPAGE:
    case MADV_NOHUGEPAGE:
    case MADV_MERGEABLE:
    case MADV_UNMERGEABLE:
      return 0;
    case MADV_COLLAPSE:
    case MADV_GUARD_INSTALL:
      return -EINVAL;
    default:
      return system_call(SYS_madvise, far.begin, far.bytes(), advice);
  }
}

long advise(void* address, size_t length, int advice) {
  const auto local = [advice](Span span) {
    return system_call(SYS_madvise, span.begin, span.bytes(), advice);
  };
  const Span wanted = pages_of(address, length);
  const Span far = shim.active() ? shim.far_part(wanted) : Span{};
  if (far.empty()) {
    return system_call(SYS_madvise, address, length, advice);
  }
  const long result = advise_far(far, advice);
  return is_error(result) ? result : on_both_sides(wanted, far, local);
}

// close_range around the shim's own descriptors.
long close_all_but_own(unsigned first, unsigned last, int flags) {
  if (first > last) {
    return -EINVAL;
  }
  long result = 0;
  for (uint64_t from = first; from <= last && !is_error(result);) {
    const uint64_t own = shim.lowest_own_descriptor(static_cast<unsigned>(from), last);
    if (own > from) {
      result = system_call(SYS_close_range, from, own - 1, flags);
    }
    from = own + 1;
  }
  return result;
}

void* pointer_or_errno(long result) {
  if (is_error(result)) {
    errno = static_cast<int>(-result);
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(result);
}

int zero_or_errno(long result) {
  if (is_error(result)) {
    errno = static_cast<int>(-result);
    return -1;
  }
  return 0;
}

__attribute__((constructor)) void start() {
  shim.active();
}

}  // namespace
}  // namespace farpage::preload

namespace preload = farpage::preload;

FARPAGE_EXPORT void* mmap(void* address, size_t length, int protection, int flags, int fd,
                          off_t offset) noexcept {
  return preload::pointer_or_errno(preload::map({address, length, protection, flags, fd, offset}));
}

FARPAGE_EXPORT void* mmap64(void* address, size_t length, int protection, int flags, int fd,
                            off64_t offset) noexcept {
  return mmap(address, length, protection, flags, fd, offset);
}

FARPAGE_EXPORT int munmap(void* address, size_t length) noexcept {
  return preload::zero_or_errno(preload::unmap(address, length));
}

FARPAGE_EXPORT void* mremap(void* address, size_t old_length, size_t new_length, int flags,
                            ...) noexcept {
  void* new_address = nullptr;
  if ((flags & MREMAP_FIXED) != 0) {
    va_list rest;
    va_start(rest, flags);
    new_address = va_arg(rest, void*);
    va_end(rest);
  }
  return preload::pointer_or_errno(
      preload::remap(address, old_length, new_length, flags, new_address));
}

FARPAGE_EXPORT int madvise(void* address, size_t length, int advice) noexcept {
  return preload::zero_or_errno(preload::advise(address, length, advice));
}

// Unlike madvise it never loses contents, and returns the error.
FARPAGE_EXPORT int posix_madvise(void* address, size_t length, int advice) noexcept {
  if (advice != POSIX_MADV_DONTNEED) {  // the others are the same numbers
    return static_cast<int>(-preload::advise(address, length, advice));
  }
  if (preload::shim.active()) {
    const preload::Span far = preload::shim.far_part(preload::pages_of(address, length));
    if (!far.empty()) {
      preload::shim.hint(preload::RequestKind::kColdHint, far);
    }
  }
  return 0;  // as libc: nothing for local memory
}

// Programs that close all descriptors they do not know (daemons above all) do not mean these.
FARPAGE_EXPORT int close(int fd) {
  if (preload::shim.owns_descriptor(fd)) {
    errno = EBADF;
    return -1;
  }
  return __close(fd);
}

FARPAGE_EXPORT int close_range(unsigned first, unsigned last, int flags) noexcept {
  return preload::zero_or_errno(preload::close_all_but_own(first, last, flags));
}

FARPAGE_EXPORT void closefrom(int lowest) noexcept {
  preload::close_all_but_own(lowest < 0 ? 0 : static_cast<unsigned>(lowest), UINT_MAX, 0);
}
