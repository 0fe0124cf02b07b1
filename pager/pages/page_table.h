// PageTable: the state word of each page of a region, 4 bytes per page, and the number of resident
// pages in each 2 MiB block, by which eviction finds victims without reading all words.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/mapping.h"
#include "base/result.h"
#include "base/strong.h"
#include "pager/pages/page_state.h"

namespace farpage::pager {

inline constexpr uint32_t kPagesPerBlock = 512;

// Threads: any; no locks.
// Invariants (check_invariants() checks them on a quiet table):
//  1. each change of a word is an edge of the diagram in page_state.h, or changes only its
//     age, its references, kAwaited or kDiscarded;
//  2. a block's count is the number of its pages that are resident;
//  3. away_pages() and shared_pages() are the numbers of words for which is_away() and is_shared()
//     hold.
class PageTable {
 public:
  static Result<PageTable> create(uint64_t pages);
  // In `memory`, of memory_bytes(pages): zeros, or what a dead process has left there. Then the
  // numbers are counted again.
  static Result<PageTable> create(uint64_t pages, Mapping memory);
  static size_t memory_bytes(uint64_t pages) { return used_offset(pages) + used_bytes(pages); }

  uint64_t pages() const { return pages_; }
  uint64_t blocks() const { return (pages_ + kPagesPerBlock - 1) / kPagesPerBlock; }

  // Acquire: pairs with the release in transition(), so what was done before is seen.
  PageWord load(PageIndex page) const {
    return PageWord(words()[page.value].load(std::memory_order_acquire));
  }

  // Moves the page from `from` to `to` if it is still there; false if another thread was first.
  bool transition(PageIndex page, PageWord from, PageWord to);
  // The same by the thread that owns the page (Unprotecting, Dropping, or Fetching while no fault
  // is handled): no other thread may have moved it.
  void transition_owned(PageIndex page, PageWord from, PageWord to);

  // The same, out of Fetching: true if the page was marked as kAwaited meanwhile, and its waiters
  // must be woken. `to`: Empty, if it was marked as kDiscarded.
  [[nodiscard]] bool end_fetching(PageIndex page, PageWord from, PageWord to);
  // Marks a page that is still at `fetching` as kAwaited; false if another thread was first.
  bool mark_awaited(PageIndex page, PageWord fetching);
  // The same as kDiscarded: end_fetching() makes it Empty.
  bool mark_discarded(PageIndex page, PageWord fetching);

  // Changes epoch and references of a page that is still at `from`; false if another thread was
  // first.
  bool set_age(PageIndex page, PageWord from, uint8_t epoch, uint32_t references) {
    return replace(page, from, from.with_epoch(epoch).with_references(references));
  }

  // Marks a Clean or Dirty page that is still at `from` as kShared; false if another thread was
  // first.
  bool mark_shared(PageIndex page, PageWord from);

  // Before any other thread changes the table: makes the Empty page what `word` says.
  void place(PageIndex page, PageWord word);

  uint32_t resident_in_block(uint64_t block) const {
    return counts()[block].load(std::memory_order_relaxed);
  }
  uint64_t away_pages() const { return shared_->away.load(std::memory_order_relaxed); }
  uint64_t shared_pages() const { return shared_->shared.load(std::memory_order_relaxed); }
  // For a walk over all pages that may be used: the first page from `page` on in a block with a
  // page that was ever not Empty; pages() if there is none.
  uint64_t next_used(uint64_t page) const;

 private:
  struct Shared {  // in memory of its own, so that the table can be moved
    std::atomic<uint64_t> away{0};
    std::atomic<uint64_t> shared{0};
  };
  PageTable(Mapping memory, Mapping count_memory, Mapping shared_memory, uint64_t pages);
  static size_t used_offset(uint64_t pages) {
    return (pages * sizeof(uint32_t) + kPageBytes - 1) & ~(kPageBytes - 1);
  }
  static size_t used_bytes(uint64_t pages) {
    return (pages / kPagesPerBlock / 64 + 2) * sizeof(uint64_t);
  }
  // The word of the page, if it is still `from`.
  bool replace(PageIndex page, PageWord from, PageWord to);
  void note_used(PageIndex page);
  void count(PageIndex page, PageWord from, PageWord to);
  std::atomic<uint32_t>* words() const {
    return reinterpret_cast<std::atomic<uint32_t>*>(memory_.data());
  }
  std::atomic<uint32_t>* counts() const {
    return reinterpret_cast<std::atomic<uint32_t>*>(count_memory_.data());
  }
  // One bit for each block.
  std::atomic<uint64_t>* used() const {
    return reinterpret_cast<std::atomic<uint64_t>*>(memory_.data() + used_offset(pages_));
  }

  Mapping memory_;  // words and used(). Zeroed: all Empty; touched only where pages are used
  Mapping count_memory_;
  Mapping shared_memory_;
  Shared* shared_;
  uint64_t pages_;
};

// The first broken invariant of a quiet table, or success.
Status check_invariants(const PageTable& table);

}  // namespace farpage::pager
