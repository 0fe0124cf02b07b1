#include "pager/pages/access_map.h"

namespace farpage::pager {

Result<AccessMap> AccessMap::create(uint64_t pages) {
  FARPAGE_TRY(memory, Mapping::anonymous((pages + kGranulePages - 1) / kGranulePages));
  return AccessMap(std::move(memory));
}

void AccessMap::set(uffd::PageRun run, AccessPattern pattern) {
  if (run.pages == 0) return;
  const uint64_t last = (run.first.value + run.pages - 1) / kGranulePages;
  for (uint64_t granule = run.first.value / kGranulePages; granule <= last; ++granule) {
    // Does not write bytes that match already: their memory may not be allocated yet.
    if (bytes()[granule].load(std::memory_order_relaxed) != pattern)
      bytes()[granule].store(pattern, std::memory_order_relaxed);
  }
}

}  // namespace farpage::pager
