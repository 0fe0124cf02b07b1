// madvise and process_madvise.
#include <errno.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "shim/memory_calls.h"
#include "shim/shim.h"

namespace farpage::shim {
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

bool loses_contents(int advice) {
  return advice == MADV_DONTNEED || advice == MADV_DONTNEED_LOCKED || advice == MADV_FREE;
}

long advise_far(Span far, int advice) {
  switch (advice) {
    case MADV_DONTNEED:
    case MADV_FREE:
      return shim.discard(far, MADV_DONTNEED);
    case MADV_DONTNEED_LOCKED:
      return shim.discard(far, MADV_DONTNEED_LOCKED);
    case MADV_COLD:
    case MADV_PAGEOUT:
      return shim.hint(RequestKind::kColdHint, far);
    case MADV_WILLNEED:
      return shim.hint(RequestKind::kWillNeedHint, far);
    case MADV_NORMAL:
      return shim.expect_access(RequestKind::kNormalAccess, far);
    case MADV_RANDOM:
      return shim.expect_access(RequestKind::kRandomAccess, far);
    case MADV_SEQUENTIAL:
      return shim.expect_access(RequestKind::kSequentialAccess, far);
    case MADV_DONTFORK:
    case MADV_DOFORK:
      return shim.keep_from_children(far, advice == MADV_DONTFORK);
    case MADV_WIPEONFORK:
    case MADV_KEEPONFORK:
      return shim.wipe_in_children(far, advice == MADV_WIPEONFORK);
    // These would create huge or shared pages unknown to the pager. All are hints: ignored.
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

}  // namespace

long advise(void* address, size_t length, int advice) {
  const auto far = [advice](Span span) { return advise_far(span, advice); };
  const auto local = [advice](Span span) {
    return system_call(SYS_madvise, span.begin, span.bytes(), advice);
  };
  const Span wanted = pages_of(address, length);
  return touches_far_memory(wanted) ? for_each_part(wanted, far, local)
                                    : system_call(SYS_madvise, address, length, advice);
}

void advise_cold(void* address, size_t length) {
  if (!shim.active()) {
    return;
  }
  for_each_part(
      pages_of(address, length), [](Span far) { return shim.hint(RequestKind::kColdHint, far); },
      [](Span) { return 0L; });
}

// For another process the kernel refuses advice that discards contents. For this one (Linux 6.13)
// it would discard them without telling the pager. EINVAL is the answer of older kernels.
long advise_process(int pidfd, const void* vector, size_t count, int advice, unsigned flags) {
  const auto* parts = static_cast<const iovec*>(vector);
  if (shim.active() && loses_contents(advice)) {
    for (size_t i = 0; i < count; ++i) {
      if (touches_far_memory(pages_of(parts[i].iov_base, parts[i].iov_len))) {
        return -EINVAL;
      }
    }
  }
  return system_call(SYS_process_madvise, pidfd, vector, count, advice, flags);
}

}  // namespace farpage::shim
