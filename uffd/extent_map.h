// ExtentMap: where the pages of one address space lie. The far memory is a set of disjoint extents,
// each with consecutive page numbers. The first one, the window, has the numbers from 0 on and
// stays as it is. Others are added, cut and moved while pages fault: memory that the program has
// placed outside of the window.
//
// Numbers are given densely, lowest first, in granules of 16 pages that one extent has for itself:
// so a slab is shared by many small extents, and the address of a page is one array access.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/mapping.h"
#include "base/mutex.h"
#include "base/result.h"
#include "uffd/address_space.h"

namespace farpage::uffd {

// Threads: find(), address_of(), consecutive() and runs_in() from any thread without a lock, also
// while another changes the map; changes under a mutex of its own.
// Invariants:
//  1. extents are sorted by address, disjoint and not empty;
//  2. a number belongs to at most one page; it is given again only after remove();
//  3. a reader sees the extents before or after a change, never a part of it.
class ExtentMap {
 public:
  // As many as the kernel's default limit of mappings (vm.max_map_count).
  static constexpr size_t kMaxExtents = 65'536;
  static constexpr uint64_t kGranulePages = 16;

  // The window [base, base + pages * 4096), and room for `more_pages` pages of other extents.
  static Result<std::unique_ptr<ExtentMap>> create(uint64_t base, uint64_t pages,
                                                   uint64_t more_pages);
  // With its extents in `kept`, of kKeptBytes: zeros, or what a dead process has left there.
  static Result<std::unique_ptr<ExtentMap>> create(uint64_t base, uint64_t pages,
                                                   uint64_t more_pages, Mapping kept);
  // The same extents with the same numbers: of a forked child.
  Result<std::unique_ptr<ExtentMap>> copy() const;
  // But the child has no such window: its numbers are those of no memory.
  Result<std::unique_ptr<ExtentMap>> copy_without_window() const;
  static constexpr uint64_t kNoWindow = uint64_t{1} << 56;  // its address then: of no process

  // Before it has readers: the extents are in this memory from now on, as in create().
  void keep(Mapping kept);

  // All numbers are below this.
  uint64_t pages() const { return window_pages_ + granules_ * kGranulePages; }
  uint64_t window_address() const { return base_; }
  uint64_t window_pages() const { return window_pages_; }
  size_t size() const;  // extents without the window

  // The page at an address; nullopt: in no extent.
  std::optional<PageIndex> find(uint64_t address) const {
    const uint64_t offset = address - base_;
    if (offset < window_pages_ << kPageShift) return PageIndex{offset >> kPageShift};
    return find_outside(address);
  }
  // Of a page in an extent. 0: its granule has none.
  uint64_t address_of(PageIndex page) const {
    if (page.value < window_pages_) return base_ + (page.value << kPageShift);
    const uint64_t offset = page.value - window_pages_;
    const uint64_t granule = addresses()[offset / kGranulePages].load(std::memory_order_acquire);
    if (granule == kSplit) [[unlikely]]
      return address_in_split(page);
    return granule == 0 ? 0 : granule + ((offset % kGranulePages) << kPageShift);
  }
  // How many pages of the run, from the first on, are in extents and lie one after the other. 0:
  // the first is in none. What was cut out of a granule is not counted: other memory may be there.
  uint32_t consecutive(PageRun run) const;
  // The pages of the extents between two page-aligned addresses, in the order of the addresses.
  std::vector<PageRun> runs_in(uint64_t begin, uint64_t end) const;

  // Gives numbers to [begin, end), which no extent intersects. kConflict: one does. kExhausted: no
  // numbers, or kMaxExtents exist. After a failure nothing has changed.
  Status add(uint64_t begin, uint64_t end);
  // Cuts [begin, end) out of all extents but the window, and frees the numbers: no operation on
  // these pages is under way. (A hole that would be one extent too many stays: its numbers are not
  // given again.)
  void remove(uint64_t begin, uint64_t end);
  // mremap(2): the extents' parts in [from, from + bytes) are at `to` from now on, with the numbers
  // that they had; what was at `to` is cut out before. False, and nothing has changed: the window
  // is concerned, or there would be too many extents. Where a part ends within a granule, the
  // addresses of that granule's pages are found by a search through all extents from now on.
  bool move(uint64_t from, uint64_t to, uint64_t bytes);
  static constexpr size_t kKeptBytes = (4 + 6 * kMaxExtents) * sizeof(uint64_t);

  // Between these two the extents, or what their owner knows of their pages, are behind what the
  // kernel has told. A successor must not go on with them.
  void begin_change() { lists().changing.store(1, std::memory_order_seq_cst); }
  void end_change() { lists().changing.store(0, std::memory_order_release); }
  bool is_changing() const { return lists().changing.load(std::memory_order_acquire) != 0; }

 private:
  struct Extent {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t first = 0;  // page number
  };
  // An extent as readers see it.
  struct Entry {
    std::atomic<uint64_t> begin, end, first;
  };
  // Two lists: readers use the one of the current version while a writer makes the next one in the
  // other. A reader that was overtaken by two versions reads again.
  struct Lists {
    std::atomic<uint64_t> changing;
    std::atomic<uint64_t> version;
    std::atomic<size_t> counts[2];
    Entry entries[2][kMaxExtents];
  };
  struct Memory {
    Mapping kept;       // Lists
    Mapping addresses;  // of the first page of each granule; 0: free; kSplit: no common one
    Mapping masks;      // which pages of each granule are in an extent, one bit for each
  };

  static constexpr uint64_t kSplit = 1;

  ExtentMap(uint64_t base, uint64_t pages, uint64_t granules, Memory memory);
  Result<std::unique_ptr<ExtentMap>> copy_with(uint64_t base) const;

  std::atomic<uint64_t>* addresses() const {
    return reinterpret_cast<std::atomic<uint64_t>*>(memory_.addresses.data());
  }
  std::atomic<uint16_t>& mask(uint64_t granule) const {
    return reinterpret_cast<std::atomic<uint16_t>*>(memory_.masks.data())[granule];
  }
  Lists& lists() const { return *reinterpret_cast<Lists*>(memory_.kept.data()); }
  Entry* list(uint64_t version) const { return lists().entries[version % 2]; }
  std::optional<PageIndex> find_outside(uint64_t address) const;
  uint64_t address_in_split(PageIndex page) const;
  // Calls read(entries, count) until no writer has changed the list meanwhile.
  template <typename Read>
  void read_list(Read read) const;

  std::vector<PageRun> runs_between(uint64_t begin, uint64_t end) const FARPAGE_REQUIRES(mutex_);
  void publish() FARPAGE_REQUIRES(mutex_);
  std::optional<uint64_t> take_granules(uint64_t count) FARPAGE_REQUIRES(mutex_);
  // Calls each(granule, mask of its pages) for the numbers of the extent.
  template <typename Each>
  void for_each_granule(const Extent& extent, Each each) const;
  void place(const Extent& extent) FARPAGE_REQUIRES(mutex_);
  void free(const Extent& extent) FARPAGE_REQUIRES(mutex_);
  // Takes the parts in [begin, end) out of extents_.
  std::vector<Extent> cut(uint64_t begin, uint64_t end) FARPAGE_REQUIRES(mutex_);
  void insert(const Extent& extent) FARPAGE_REQUIRES(mutex_);
  bool is_free(uint64_t granule) const {
    return mask(granule).load(std::memory_order_relaxed) == 0;
  }

  void find_kept();

  const uint64_t base_;
  const uint64_t window_pages_;
  const uint64_t granules_;
  Memory memory_;

  mutable Mutex mutex_;
  std::vector<Extent> extents_ FARPAGE_GUARDED_BY(mutex_);
  uint64_t lowest_free_ FARPAGE_GUARDED_BY(mutex_) = 0;  // no granule below is free
};

}  // namespace farpage::uffd
