// The functions that replace libc's in the program. Each is as thread-safe as the original, sets
// errno only on failure, and does nothing of its own without FARPAGE_HANDOVER.
//
// Not intercepted: libc's internal calls (thread stacks, its own malloc), and system calls by the
// program's own instructions. Elsewhere: forks in fork.cc, files in direct_io.cc, rings in
// ring_buffers.cc.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shim/direct_io.h"
#include "shim/memory_calls.h"
#include "shim/ring_buffers.h"
#include "shim/shim.h"

extern "C" int __close(int fd);  // libc's own close, under its other public name

namespace farpage::shim {

constinit Shim shim;

namespace {

// close_range that skips the shim's own descriptors.
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

long value_or_errno(long result) {
  if (is_error(result)) {
    errno = static_cast<int>(-result);
    return -1;
  }
  return result;
}

int zero_or_errno(long result) {
  return value_or_errno(result) < 0 ? -1 : 0;
}

template <typename T>
T* pointer(long word) {
  return reinterpret_cast<T*>(word);
}

// A system call by its number.
long any_call(long number, long a, long b, long c, long d, long e, long f) {
  const auto size = [](long word) { return static_cast<size_t>(word); };
  const auto small = [](long word) { return static_cast<int>(word); };
  switch (number) {
    case SYS_mmap:
      return map({pointer<void>(a), size(b), small(c), small(d), small(e), f});
    case SYS_munmap:
      return unmap(pointer<void>(a), size(b));
    case SYS_mremap:
      return remap(pointer<void>(a), size(b), size(c), small(d), pointer<void>(e));
    case SYS_madvise:
      return advise(pointer<void>(a), size(b), small(c));
    case SYS_process_madvise:
      return advise_process(small(a), pointer<void>(b), size(c), small(d),
                            static_cast<unsigned>(e));
    case SYS_pkey_mprotect:
      return protect_with_key(pointer<void>(a), size(b), small(c), small(d));
    case SYS_mlock:
      return lock_memory(pointer<void>(a), size(b), 0);
    case SYS_mlock2:
      return lock_memory(pointer<void>(a), size(b), static_cast<unsigned>(c));
    case SYS_munlock:
      return unlock_memory(pointer<void>(a), size(b));
    case SYS_mlockall:
      return lock_all_memory(small(a));
    case SYS_munlockall:
      return unlock_all_memory();
    case SYS_close_range:
      return close_all_but_own(static_cast<unsigned>(a), static_cast<unsigned>(b), small(c));
    case SYS_close:
      return shim.owns_descriptor(small(a)) ? -EBADF : system_call(SYS_close, a);
#ifdef SYS_open
    case SYS_open:
      return system_call(SYS_open, a, buffered(small(b)), c);
#endif
    case SYS_openat:
      return system_call(SYS_openat, a, b, buffered(small(c)), d);
    case SYS_fcntl:
      return system_call(SYS_fcntl, a, b,
                         b == F_SETFL ? buffered_unless_pipe(small(a), small(c)) : c);
    case SYS_io_uring_register:
      return register_ring(small(a), static_cast<unsigned>(b), pointer<void>(c),
                           static_cast<unsigned>(d));
    default:
      return system_call(number, a, b, c, d, e, f);
  }
}

__attribute__((constructor)) void start() {
  shim.active();
}

}  // namespace
}  // namespace farpage::shim

namespace shim = farpage::shim;

FARPAGE_EXPORT void* mmap(void* address, size_t length, int protection, int flags, int fd,
                          off_t offset) noexcept {
  return shim::pointer_or_errno(shim::map({address, length, protection, flags, fd, offset}));
}

FARPAGE_EXPORT void* mmap64(void* address, size_t length, int protection, int flags, int fd,
                            off64_t offset) noexcept {
  return mmap(address, length, protection, flags, fd, offset);
}

FARPAGE_EXPORT int munmap(void* address, size_t length) noexcept {
  return shim::zero_or_errno(shim::unmap(address, length));
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
  return shim::pointer_or_errno(shim::remap(address, old_length, new_length, flags, new_address));
}

FARPAGE_EXPORT int madvise(void* address, size_t length, int advice) noexcept {
  return shim::zero_or_errno(shim::advise(address, length, advice));
}

// Unlike madvise it never discards contents, and it returns the error number.
FARPAGE_EXPORT int posix_madvise(void* address, size_t length, int advice) noexcept {
  if (advice != POSIX_MADV_DONTNEED) {  // the other values are the same
    return static_cast<int>(-shim::advise(address, length, advice));
  }
  shim::advise_cold(address, length);
  return 0;  // as libc: nothing for local memory
}

FARPAGE_EXPORT ssize_t process_madvise(int pidfd, const iovec* vector, size_t count, int advice,
                                       unsigned flags) noexcept {
  return shim::value_or_errno(shim::advise_process(pidfd, vector, count, advice, flags));
}

FARPAGE_EXPORT int pkey_mprotect(void* address, size_t length, int protection, int key) noexcept {
  return shim::zero_or_errno(shim::protect_with_key(address, length, protection, key));
}

FARPAGE_EXPORT int mlock(const void* address, size_t length) noexcept {
  return shim::zero_or_errno(shim::lock_memory(address, length, 0));
}

FARPAGE_EXPORT int mlock2(const void* address, size_t length, unsigned flags) noexcept {
  return shim::zero_or_errno(shim::lock_memory(address, length, flags));
}

FARPAGE_EXPORT int munlock(const void* address, size_t length) noexcept {
  return shim::zero_or_errno(shim::unlock_memory(address, length));
}

FARPAGE_EXPORT int mlockall(int flags) noexcept {
  return shim::zero_or_errno(shim::lock_all_memory(flags));
}

FARPAGE_EXPORT int munlockall() noexcept {
  return shim::zero_or_errno(shim::unlock_all_memory());
}

// Runtimes that avoid libc's wrappers often use this one.
FARPAGE_EXPORT long syscall(long number, ...) noexcept {
  va_list rest;
  va_start(rest, number);
  const long a = va_arg(rest, long);
  const long b = va_arg(rest, long);
  const long c = va_arg(rest, long);
  const long d = va_arg(rest, long);
  const long e = va_arg(rest, long);
  const long f = va_arg(rest, long);
  va_end(rest);
  return shim::value_or_errno(shim::any_call(number, a, b, c, d, e, f));
}

// Programs that close all unknown descriptors (mostly daemons) must not close the shim's.
FARPAGE_EXPORT int close(int fd) {
  if (shim::shim.owns_descriptor(fd)) {
    errno = EBADF;
    return -1;
  }
  return __close(fd);
}

FARPAGE_EXPORT int close_range(unsigned first, unsigned last, int flags) noexcept {
  return shim::zero_or_errno(shim::close_all_but_own(first, last, flags));
}

FARPAGE_EXPORT void closefrom(int lowest) noexcept {
  shim::close_all_but_own(lowest < 0 ? 0 : static_cast<unsigned>(lowest), UINT_MAX, 0);
}
