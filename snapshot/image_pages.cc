#include "snapshot/image_pages.h"

#include <algorithm>
#include <utility>

namespace farpage::snapshot {

Result<std::shared_ptr<ImagePages>> ImagePages::create(std::shared_ptr<const image::Image> image,
                                                       const coordinator::OpenedImage& opened,
                                                       std::vector<GuestPart> parts) {
  std::shared_ptr<ImagePages> made(new ImagePages(std::move(image), std::move(parts)));
  made->slab_bytes_ = opened.regions.at(0).slab_bytes;
  const uint64_t pages_of_slab = made->slab_bytes_ >> kPageShift;
  for (size_t i = 0; i < opened.regions.size(); ++i) {
    const coordinator::RegionInfo& region = opened.regions[i];
    if (region.slab_bytes != made->slab_bytes_)
      return fail(ErrorCode::kUnsupported,
                  "image '" + opened.image.name.value +
                      "' and its bases have slabs of different sizes: push it without --base");
    made->first_places_.push_back(made->slabs_ * pages_of_slab);
    made->slabs_ += made->image_->generations()[i].leases->slabs();
  }
  made->leases_ = made->leases_of(opened);
  return made;
}

std::vector<coordinator::Lease> ImagePages::leases_of(
    const coordinator::OpenedImage& opened) const {
  const uint64_t pages_of_slab = slab_bytes_ >> kPageShift;
  std::vector<coordinator::Lease> all;
  for (size_t i = 0; i < std::min(opened.regions.size(), first_places_.size()); ++i) {
    const auto first = static_cast<uint32_t>(first_places_[i] / pages_of_slab);
    for (const coordinator::Lease& lease : opened.regions[i].leases) {
      all.push_back(lease);
      all.back().slab = SlabIndex{first + lease.slab.value};
    }
  }
  return all;
}

const image::PageEntry* ImagePages::entry_of(PageIndex page) const {
  for (const GuestPart& part : parts_) {
    const uint64_t in_part = page.value - part.first.value;
    if (in_part < part.pages) return &image_->map()[part.image_page + in_part];
  }
  return nullptr;
}

std::optional<PageIndex> ImagePages::place_of(PageIndex page) const {
  const image::PageEntry* const entry = entry_of(page);
  if (entry == nullptr || !entry->is_stored()) return std::nullopt;
  return PageIndex{first_places_[entry->generation] + entry->slot};
}

bool ImagePages::is_right(PageIndex page, std::span<const std::byte> bytes) const {
  const image::PageEntry* const entry = entry_of(page);
  return entry != nullptr && image::checksum_of(bytes) == entry->checksum;
}

}  // namespace farpage::snapshot
