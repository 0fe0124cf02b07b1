#include "image/image.h"

#include <algorithm>
#include <cstring>

#include "image/page_reads.h"

namespace farpage::image {

uint64_t slabs_of(uint64_t pages, uint64_t slab_bytes) {
  const uint64_t pages_of_slab = slab_bytes >> kPageShift;
  return (pages + pages_of_slab - 1) / pages_of_slab;
}

Result<std::unique_ptr<Image>> Image::with_leases(const coordinator::OpenedImage& opened,
                                                  ImageLinks& links, pager::DeadSlabs dead) {
  std::unique_ptr<Image> image(new Image(opened.image));
  for (const coordinator::RegionInfo& region : opened.regions) {
    // The slabs of a complete image have no holes.
    uint64_t slabs = 1;
    for (const coordinator::Lease& lease : region.leases)
      slabs = std::max(slabs, uint64_t{lease.slab.value} + 1);
    const uint64_t pages = slabs * (region.slab_bytes >> kPageShift);
    FARPAGE_TRY(leases, pager::LeaseMap::create(pages, region.slab_bytes));
    FARPAGE_TRY_VOID(links.adopt(region.leases, *leases, dead));
    if (dead == pager::DeadSlabs::kRefuse && leases->leased_slabs() != slabs)
      return fail(ErrorCode::kInvalid, "image " + region.image.value + ": a slab is missing");
    image->generations_.push_back({region.image, region.id, pages, std::move(leases)});
  }
  return image;
}

// A base is never exchanged for another one while it has readers.
Status Image::refresh(const coordinator::OpenedImage& opened, ImageLinks& links) const {
  for (size_t i = 0; i < std::min(opened.regions.size(), generations_.size()); ++i)
    if (opened.regions[i].id == generations_[i].region)
      FARPAGE_TRY_VOID(links.refresh(opened.regions[i].leases, *generations_[i].leases));
  return {};
}

Result<std::unique_ptr<Image>> Image::load(const coordinator::OpenedImage& opened,
                                           ImageLinks& links, PageReads& reads,
                                           const MapMemory& memory, pager::DeadSlabs dead) {
  const std::string& name = opened.image.name.value;
  if (opened.image.state != coordinator::ImageState::kComplete)
    return fail(ErrorCode::kConflict, "image '" + name + "' is still being uploaded");
  FARPAGE_TRY(image, with_leases(opened, links, dead));
  Result<PageMap> map = fail(ErrorCode::kUnavailable, "");
  for (uint32_t replica = 0; replica < opened.image.replicas && !map; ++replica)
    map = image->read_map(reads, replica, memory);
  if (!map) return fail_with("image '" + name + "'", map.error());
  image->map_.emplace(std::move(*map));
  return image;
}

Result<std::unique_ptr<Image>> Image::resume(const coordinator::OpenedImage& opened,
                                             ImageLinks& links, const MapMemory& memory) {
  FARPAGE_TRY(image, with_leases(opened, links));
  FARPAGE_TRY(bytes, memory(image->map_pages() << kPageShift));
  FARPAGE_TRY(map, image->decode_map(std::move(bytes)));
  image->map_.emplace(std::move(map));
  return image;
}

Result<PageMap> Image::decode_map(Mapping bytes) const {
  std::vector<uint64_t> stored;
  for (const Generation& generation : generations_) stored.push_back(generation.stored_pages);
  stored.front() = first_map_page();
  return PageMap::decode(std::move(bytes), pages(), stored, info_.digest);
}

StoredRun Image::run_at(uint64_t page, uint32_t max) const {
  const PageEntry& first = map()[page];
  const uint32_t pages_of_slab = generations_[first.generation].leases->pages_per_slab();
  const uint32_t left_in_slab = pages_of_slab - (first.slot & (pages_of_slab - 1));
  const uint64_t end = std::min({pages(), page + max, page + left_in_slab});
  StoredRun run{first.generation, first.slot, 1};
  for (uint64_t next = page + 1; next < end; ++next) {
    const PageEntry& entry = map()[next];
    if (!entry.is_stored() || entry.generation != run.generation ||
        entry.slot != run.slot + run.pages)
      break;
    ++run.pages;
  }
  return run;
}

Result<PageMap> Image::read_map(PageReads& reads, uint32_t replica, const MapMemory& memory) const {
  const uint64_t count = map_pages();
  if (first_map_page() + count > generations_.front().stored_pages)
    return fail(ErrorCode::kInvalid, "its map lies outside of its region");
  FARPAGE_TRY(bytes, memory(count << kPageShift));
  const std::span<std::byte> buffer = reads.port().buffer();
  const uint32_t pages_of_slab = generations_.front().leases->pages_per_slab();
  const auto most = std::min<uint64_t>(PageReads::kMaxRunPages, buffer.size() >> kPageShift);
  bool lost = false;
  for (uint64_t done = 0; done < count && !lost;) {
    // As many READs as the buffer has room for.
    uint64_t in_buffer = 0;
    while (done < count && in_buffer + most <= buffer.size() >> kPageShift && reads.has_room()) {
      const uint64_t at = first_map_page() + done;
      const auto pages = static_cast<uint32_t>(
          std::min({most, count - done, pages_of_slab - (at & (pages_of_slab - 1))}));
      reads.start_raw(*this, static_cast<uint32_t>(at), pages, replica,
                      buffer.subspan(in_buffer << kPageShift, size_t{pages} << kPageShift), done);
      in_buffer += pages;
      done += pages;
    }
    reads.finish([&](const PageReads::Done& end) {
      lost = lost || end.outcome == ReadOutcome::kLost;
      std::memcpy(bytes.data() + (end.token << kPageShift), end.bytes.data(), end.bytes.size());
    });
  }
  if (lost) return fail(ErrorCode::kUnavailable, "its map cannot be read from any replica");
  return decode_map(std::move(bytes));
}

}  // namespace farpage::image
