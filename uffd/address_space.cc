#include "uffd/address_space.h"

#include <algorithm>

namespace farpage::uffd {

std::vector<PageRun> AddressSpace::runs_in(uint64_t begin, uint64_t end) const {
  const uint64_t window = address_of(PageIndex{0});
  const uint64_t low = std::max(begin, window);
  const uint64_t high = std::min(end, window + (pages() << kPageShift));
  if (low >= high) return {};
  return {
      {PageIndex{(low - window) >> kPageShift}, static_cast<uint32_t>((high - low) >> kPageShift)}};
}

Status AddressSpace::add_extent(uint64_t /*begin*/, uint64_t /*end*/) {
  return fail(ErrorCode::kUnsupported, "this address space has one extent");
}

void AddressSpace::remove_extent(uint64_t /*begin*/, uint64_t /*end*/) {}

}  // namespace farpage::uffd
