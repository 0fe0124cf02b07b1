#include "pager/links/scrubber.h"

#include <algorithm>

namespace farpage::pager {

void Scrubber::remove(const LeaseMap& leases) {
  const auto at = std::ranges::find(regions_, &leases);
  if (at == regions_.end()) return;
  const auto index = static_cast<size_t>(at - regions_.begin());
  if (index == region_) page_ = 0;
  if (index < region_) --region_;
  regions_.erase(at);
}

std::optional<Scrubber::Piece> Scrubber::next() {
  for (; region_ < regions_.size(); ++region_, page_ = 0) {
    const LeaseMap& leases = *regions_[region_];
    const uint64_t end = leases.slabs_touched() * leases.pages_per_slab();
    while (page_ < end) {
      const PageIndex first{page_};
      if (leases.find(first) == nullptr) {
        page_ += leases.pages_per_slab();
        continue;
      }
      page_ += kPiecePages;
      return Piece{&leases, first, kPiecePages};
    }
  }
  region_ = 0;
  return std::nullopt;
}

Scrubber::Piece Scrubber::known_part(const Piece& piece, Checksums& known) {
  const SlotChecksums& checksums = piece.leases->checksums();
  uint32_t first = 0;
  uint32_t end = piece.pages;
  const auto at = [&](uint32_t i) { return checksums.known(PageIndex{piece.first.value + i}); };
  while (first < end && at(first) == 0) ++first;
  while (end > first && at(end - 1) == 0) --end;
  for (uint32_t i = first; i < end; ++i) known[i - first] = at(i);
  return {piece.leases, PageIndex{piece.first.value + first}, end - first};
}

// A slot that is written meanwhile has no checksum, or another one.
bool Scrubber::is_wrong(const Piece& part, uint32_t page, uint64_t known) const {
  const SlotChecksums& checksums = part.leases->checksums();
  const auto bytes = transfer_.buffer().subspan(size_t{page} << kPageShift, kPageBytes);
  return checksums.of(bytes) != known &&
         checksums.known(PageIndex{part.first.value + page}) == known;
}

Nanoseconds Scrubber::rest_after(Nanoseconds took, uint64_t bytes) const {
  return rest_at_rate(bytes, bytes_per_second_, took);
}

}  // namespace farpage::pager
