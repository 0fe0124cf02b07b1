// The program's memory calls as plain functions, called by the exported ones (interpose.cc) and by
// syscall(2). Each returns what the kernel's call of that name returns: a value, or a negative
// errno. Calls that do not touch far memory go to the kernel unchanged.
//
// Threads: any, and signal handlers, as for the system calls.
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include <initializer_list>

#include "shim/shim.h"

namespace farpage::shim {

struct MapCall {
  void* address;
  size_t length;
  int protection;
  int flags;
  int fd;
  off_t offset;
};
long map(const MapCall& call);
long unmap(void* address, size_t length);
long remap(void* address, size_t old_length, size_t new_length, int flags, void* new_address);
long advise(void* address, size_t length, int advice);
// posix_madvise's DONTNEED, which never discards contents.
void advise_cold(void* address, size_t length);
long advise_process(int pidfd, const void* vector, size_t count, int advice, unsigned flags);
long protect_with_key(void* address, size_t length, int protection, int key);

long lock_memory(const void* address, size_t length, unsigned flags);
long unlock_memory(const void* address, size_t length);
long lock_all_memory(int flags);
long unlock_all_memory();

inline uint64_t address_of(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

// The pages that a call names; empty if the kernel would refuse the call, which then goes to it.
inline Span pages_of(const void* address, size_t length) {
  const uint64_t begin = address_of(address);
  const uint64_t bytes = round_up_to_page(length);
  if (begin % kPageBytes != 0 || bytes < length || begin + bytes < begin) {
    return {};
  }
  return {begin, begin + bytes};
}

inline bool touches_far_memory(Span wanted) {
  return shim.active() && !shim.first_far_part(wanted).empty();
}

// Calls `far` for the parts that are far memory, `local` for those between them; returns the first
// failure.
template <typename Far, typename Local>
long for_each_part(Span wanted, Far far, Local local) {
  long result = 0;
  while (!wanted.empty() && !is_error(result)) {
    const Span part = shim.first_far_part(wanted);
    const Span before{wanted.begin, part.empty() ? wanted.end : part.begin};
    result = before.empty() ? 0 : local(before);
    if (part.empty()) {
      break;
    }
    if (!is_error(result)) {
      result = far(part);
    }
    wanted.begin = part.end;
  }
  return result;
}

}  // namespace farpage::shim
