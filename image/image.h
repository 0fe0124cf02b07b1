// Image: one opened image: where each of its pages is stored, in all its generations.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mapping.h"
#include "base/result.h"
#include "coordinator/api.h"
#include "coordinator/image_client.h"
#include "image/image_links.h"
#include "image/page_map.h"
#include "pager/links/lease_map.h"
#include "pager/links/stored_pages.h"

namespace farpage::image {

class PageReads;

// Consecutive pages of an image that lie together in one slab.
struct StoredRun {
  uint32_t generation = 0;
  uint32_t slot = 0;
  uint32_t pages = 0;
};

// One region that stores pages: of the image, or of a base.
struct Generation {
  ImageId name;
  RegionId region;
  uint64_t stored_pages = 0;
  std::unique_ptr<pager::LeaseMap> leases;
};

// Threads: any may read it.
class Image {
 public:
  // Gives zeroed memory for the map.
  using MapMemory = std::function<Result<Mapping>(size_t bytes)>;
  static Result<Mapping> private_memory(size_t bytes) { return Mapping::anonymous(bytes); }

  // The leases of all generations, and the map. `reads` is used by the calling thread; its port is
  // one of `links`. kConflict: it is still being uploaded.
  // kLeaveOut: slabs without a replica are no failure, but where the map is.
  static Result<std::unique_ptr<Image>> load(const coordinator::OpenedImage& opened,
                                             ImageLinks& links, PageReads& reads,
                                             const MapMemory& memory = private_memory,
                                             pager::DeadSlabs dead = pager::DeadSlabs::kRefuse);
  // The same without a READ, with the memory that an earlier load() has filled.
  static Result<std::unique_ptr<Image>> resume(const coordinator::OpenedImage& opened,
                                               ImageLinks& links, const MapMemory& memory);
  // The leases without the map: of one that is being uploaded, or that verify() reads.
  static Result<std::unique_ptr<Image>> with_leases(
      const coordinator::OpenedImage& opened, ImageLinks& links,
      pager::DeadSlabs dead = pager::DeadSlabs::kRefuse);

  // The leases that the coordinator has now, of the same image. Any thread but those that read.
  Status refresh(const coordinator::OpenedImage& opened, ImageLinks& links) const;
  // Before any reads it: `wake` has that done soon. Any thread; it does not wait.
  void refresh_by(std::function<void()> wake) const {
    note_leases(SteadyClock::read());
    wake_ = std::move(wake);
  }
  // The leases are those that the coordinator had at that time.
  void note_leases(Instant as_of) const {
    leases_as_of_.store(as_of.count(), std::memory_order_release);
  }
  // A READ finds no replica. False: nobody would bring others, or they would be the same.
  bool ask_for_leases() const {
    constexpr Nanoseconds kNew = coordinator::kReaderInterval * 2;
    const Instant as_of{leases_as_of_.load(std::memory_order_acquire)};
    if (!wake_ || SteadyClock::read() - as_of < kNew) return false;
    wake_();
    return true;
  }

  const coordinator::ImageInfo& info() const { return info_; }
  const std::string& name() const { return info_.name.value; }
  uint64_t pages() const { return info_.bytes >> kPageShift; }
  const PageMap& map() const { return *map_; }
  bool has_map() const { return map_.has_value(); }
  const std::vector<Generation>& generations() const { return generations_; }

  // At `page`, which is stored: it and at most `max - 1` pages behind it.
  StoredRun run_at(uint64_t page, uint32_t max) const;

  // The pages of the map, in the image's own region, behind the stored pages.
  uint64_t first_map_page() const { return info_.pages; }
  uint64_t map_pages() const { return PageMap::encoded_pages(pages()); }
  // Reads the map from the given replica of each slab, or where that is lost from another.
  Result<PageMap> read_map(PageReads& reads, uint32_t replica,
                           const MapMemory& memory = private_memory) const;

 private:
  explicit Image(coordinator::ImageInfo info) : info_(std::move(info)) {}
  Result<PageMap> decode_map(Mapping bytes) const;

  coordinator::ImageInfo info_;
  std::vector<Generation> generations_;
  std::optional<PageMap> map_;
  mutable std::function<void()> wake_;
  mutable std::atomic<Instant::rep> leases_as_of_{0};
};

// Slabs of a region that has so many pages.
uint64_t slabs_of(uint64_t pages, uint64_t slab_bytes);

}  // namespace farpage::image
