// ImagePages: the pages of an image as those of one guest, whose page numbers follow its regions.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/api.h"
#include "image/image.h"
#include "pager/links/stored_pages.h"

namespace farpage::snapshot {

// Consecutive pages of a guest that are consecutive in the image, too.
struct GuestPart {
  PageIndex first;
  uint64_t pages = 0;
  uint64_t image_page = 0;
};

// Threads: any.
class ImagePages final : public pager::StoredPages {
 public:
  // `opened` has the leases of the image. Parts do not overlap, and lie within the image.
  // kUnsupported: its generations have slabs of different sizes.
  static Result<std::shared_ptr<ImagePages>> create(std::shared_ptr<const image::Image> image,
                                                    const coordinator::OpenedImage& opened,
                                                    std::vector<GuestPart> parts);

  // The leases of `opened`, numbered as those of all generations.
  std::vector<coordinator::Lease> leases_of(const coordinator::OpenedImage& opened) const;

  uint64_t slabs() const override { return slabs_; }
  uint64_t slab_bytes() const override { return slab_bytes_; }
  const std::vector<coordinator::Lease>& leases() const override { return leases_; }
  std::optional<PageIndex> place_of(PageIndex page) const override;
  bool is_right(PageIndex page, std::span<const std::byte> bytes) const override;

 private:
  ImagePages(std::shared_ptr<const image::Image> image, std::vector<GuestPart> parts)
      : image_(std::move(image)), parts_(std::move(parts)) {}
  // nullptr: no page of the image.
  const image::PageEntry* entry_of(PageIndex page) const;

  const std::shared_ptr<const image::Image> image_;
  const std::vector<GuestPart> parts_;
  uint64_t slab_bytes_ = 0;
  uint64_t slabs_ = 0;
  std::vector<uint64_t> first_places_;  // of each generation
  std::vector<coordinator::Lease> leases_;
};

}  // namespace farpage::snapshot
