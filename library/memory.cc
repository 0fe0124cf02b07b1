#include "library/memory.h"

#include <sys/mman.h>

namespace farpage::library {

Status Memory::pin(uffd::PageRun run) const {
  if (run.pages == 0) return {};
  FARPAGE_TRY(pinned, try_pin(run));
  if (!pinned)
    return fail(ErrorCode::kExhausted,
                "range: more of local_bytes would be pinned than is allowed");
  Status here = prefault(run, true);
  if (!here) unpin(run);
  return here;
}

Status Memory::discard(uffd::PageRun run) const {
  // The pager first, then the frames: after its reply no old bytes can be installed.
  FARPAGE_TRY_VOID(forget(run));
  const std::span<std::byte> range = bytes_of(run);
  if (::madvise(range.data(), range.size(), MADV_DONTNEED) != 0)
    return fail_errno("madvise(DONTNEED) of far memory");
  return {};
}

}  // namespace farpage::library
