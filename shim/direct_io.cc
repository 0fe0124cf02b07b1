// Removes O_DIRECT from the files that the program opens.
//
// With O_DIRECT the device writes to the program's pages past the page tables; a write to a page
// that is being evicted would be lost. Through the page cache the bytes are the same. The benefits
// of O_DIRECT (less copying, less cache) are not possible for memory that can be evicted.
// Durability does not depend on it, but on O_SYNC and fsync.
#include "shim/direct_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>

#include "shim/next.h"
#include "shim/shim.h"

extern "C" int __open64(const char* path, int flags, ...);  // libc's own, under other public names
extern "C" int __fcntl(int fd, int command, ...);

namespace farpage::shim {

int buffered(int flags) {
  return (flags & O_DIRECT) != 0 && shim.active() ? flags & ~O_DIRECT : flags;
}

int buffered_unless_pipe(int fd, int flags) {
  struct stat status {};
  if ((flags & O_DIRECT) != 0 && fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode)) {
    return flags;
  }
  return buffered(flags);
}

namespace {

using OpenAt = int(int, const char*, int, ...);
constinit Next<OpenAt> next_openat("openat64");

int open_at(int folder, const char* path, int flags, mode_t mode) {
  if (folder == AT_FDCWD) {
    return __open64(path, buffered(flags), mode);
  }
  OpenAt* const next = next_openat.get();
  if (next == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  return next(folder, path, buffered(flags), mode);
}

bool has_mode(int flags) {
  return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
}

}  // namespace
}  // namespace farpage::shim

namespace shim = farpage::shim;

#define FARPAGE_MODE_AFTER(flags) \
  mode_t mode = 0;                \
  if (shim::has_mode(flags)) {    \
    va_list rest;                 \
    va_start(rest, flags);        \
    mode = va_arg(rest, mode_t);  \
    va_end(rest);                 \
  }

FARPAGE_EXPORT int open(const char* path, int flags, ...) {
  FARPAGE_MODE_AFTER(flags)
  return shim::open_at(AT_FDCWD, path, flags, mode);
}

FARPAGE_EXPORT int open64(const char* path, int flags, ...) {
  FARPAGE_MODE_AFTER(flags)
  return shim::open_at(AT_FDCWD, path, flags, mode);
}

FARPAGE_EXPORT int openat(int folder, const char* path, int flags, ...) {
  FARPAGE_MODE_AFTER(flags)
  return shim::open_at(folder, path, flags, mode);
}

FARPAGE_EXPORT int openat64(int folder, const char* path, int flags, ...) {
  FARPAGE_MODE_AFTER(flags)
  return shim::open_at(folder, path, flags, mode);
}

// The headers call these instead under _FORTIFY_SOURCE.
FARPAGE_EXPORT int __open_2(const char* path, int flags) {
  return shim::open_at(AT_FDCWD, path, flags, 0);
}

FARPAGE_EXPORT int __open64_2(const char* path, int flags) {
  return shim::open_at(AT_FDCWD, path, flags, 0);
}

FARPAGE_EXPORT int __openat_2(int folder, const char* path, int flags) {
  return shim::open_at(folder, path, flags, 0);
}

FARPAGE_EXPORT int __openat64_2(int folder, const char* path, int flags) {
  return shim::open_at(folder, path, flags, 0);
}

// The third argument is one word, or absent.
FARPAGE_EXPORT int fcntl(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const word = va_arg(rest, void*);
  va_end(rest);
  if (command != F_SETFL) {
    return __fcntl(fd, command, word);
  }
  const int flags = static_cast<int>(reinterpret_cast<intptr_t>(word));
  return __fcntl(fd, F_SETFL, shim::buffered_unless_pipe(fd, flags));
}

FARPAGE_EXPORT int fcntl64(int fd, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const word = va_arg(rest, void*);
  va_end(rest);
  return fcntl(fd, command, word);
}
