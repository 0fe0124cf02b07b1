// Works around misaligned small allocations of mimalloc.
//
// mimalloc 2.0.9 (Debian 12), which `farpage run` preloads, aligns blocks to only 128 bytes when
// asked for a power of two up to 1024 bytes with an alignment of 256 or more: it assumes that such
// blocks are naturally aligned, but places the first one of a page 128 bytes after its start.
// Larger sizes take another path in mimalloc, so these requests are enlarged. With other allocators
// this costs some bytes.
#include <stddef.h>

#include "shim/next.h"
#include "shim/shim.h"

namespace farpage::shim {
namespace {

size_t repaired(size_t alignment, size_t bytes) {
  constexpr size_t kTrusted = 128;
  constexpr size_t kLargestBlock = 1024;
  return alignment > kTrusted && bytes <= kLargestBlock ? kLargestBlock + 1 : bytes;
}

using PosixMemalign = int(void**, size_t, size_t);
using Memalign = void*(size_t, size_t);
using New = void*(size_t, size_t);
using NewOrNull = void*(size_t, size_t, const void*);

constinit Next<PosixMemalign> next_posix_memalign("posix_memalign");
constinit Next<Memalign> next_memalign("memalign");
constinit Next<Memalign> next_aligned_alloc("aligned_alloc");
constinit Next<New> next_new("_ZnwmSt11align_val_t");
constinit Next<New> next_new_array("_ZnamSt11align_val_t");
constinit Next<NewOrNull> next_new_or_null("_ZnwmSt11align_val_tRKSt9nothrow_t");
constinit Next<NewOrNull> next_new_array_or_null("_ZnamSt11align_val_tRKSt9nothrow_t");

}  // namespace
}  // namespace farpage::shim

namespace shim = farpage::shim;

FARPAGE_EXPORT int posix_memalign(void** block, size_t alignment, size_t bytes) noexcept {
  return shim::next_posix_memalign.get()(block, alignment, shim::repaired(alignment, bytes));
}

FARPAGE_EXPORT void* memalign(size_t alignment, size_t bytes) noexcept {
  return shim::next_memalign.get()(alignment, shim::repaired(alignment, bytes));
}

FARPAGE_EXPORT void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  return shim::next_aligned_alloc.get()(alignment, shim::repaired(alignment, bytes));
}

// The aligned variants of operator new (C++17), by their mangled names in the x86-64 and arm64 ABI.
// A caller has loaded the C++ library, which provides the next definition.
FARPAGE_EXPORT void* aligned_new(size_t bytes, size_t alignment) asm("_ZnwmSt11align_val_t");
void* aligned_new(size_t bytes, size_t alignment) {
  return shim::next_new.get()(shim::repaired(alignment, bytes), alignment);
}

FARPAGE_EXPORT void* aligned_new_array(size_t bytes, size_t alignment) asm("_ZnamSt11align_val_t");
void* aligned_new_array(size_t bytes, size_t alignment) {
  return shim::next_new_array.get()(shim::repaired(alignment, bytes), alignment);
}

FARPAGE_EXPORT void* aligned_new_or_null(size_t bytes, size_t alignment,
                                         const void* tag) asm("_ZnwmSt11align_val_tRKSt9nothrow_t");
void* aligned_new_or_null(size_t bytes, size_t alignment, const void* tag) {
  return shim::next_new_or_null.get()(shim::repaired(alignment, bytes), alignment, tag);
}

FARPAGE_EXPORT void* aligned_new_array_or_null(size_t bytes, size_t alignment, const void* tag) asm(
    "_ZnamSt11align_val_tRKSt9nothrow_t");
void* aligned_new_array_or_null(size_t bytes, size_t alignment, const void* tag) {
  return shim::next_new_array_or_null.get()(shim::repaired(alignment, bytes), alignment, tag);
}
