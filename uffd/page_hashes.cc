#include "uffd/page_hashes.h"

#include "base/check.h"
#include "uffd/page_hash.h"

namespace farpage::uffd {

uint64_t PageHashes::hash(std::span<const std::byte> bytes) {
  FARPAGE_CHECK(bytes.size() == kPageBytes, "%zu bytes", bytes.size());
  return hash_page(bytes.data());
}

void PageHashes::note(PageIndex page, std::span<const std::byte> bytes) {
  entries_[next_] = {page.value, hash(bytes)};
  next_ = (next_ + 1) % kPages;
}

// Pages are asked for in the order in which they were noted, so the search mostly ends at once.
std::optional<uint64_t> PageHashes::find(PageIndex page) const {
  for (size_t i = 0; i < kPages; ++i) {
    const size_t at = (found_ + 1 + i) % kPages;
    if (entries_[at].page != page.value) continue;
    found_ = at;
    return entries_[at].hash;
  }
  return std::nullopt;
}

}  // namespace farpage::uffd
