// CompressedPages: the pool of compressed copies of one target's remote pages.
//
// A copy is only a faster way to bytes that the replicas have too: any copy may be dropped at any
// time. Whether a copy may be used is said by the page's word (PageWord::kCompressed), not here:
// what the pool has of a page may be out of date.
//
// Pool pages of 4 KiB are cut into cells of one size class, as in zsmalloc and memcached's slabs.
// When the pool may not grow, the pool page that the hand of a clock points to loses all of its
// copies; those that got a copy since the last round are skipped once, so the oldest copies go.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mapping.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/strong.h"

namespace farpage::pager {

// Threads: insert() and trim(): one at a time, the holder of the evictor's turn. take() of a page:
// who owns it (Fetching). The others: any. The lock is held for the copy of at most kMaxBytes, or
// while a pool page is emptied. Allocates in insert() only.
// Invariants (check_invariants()):
//  1. a page has at most one copy, and the index entry of a page leads to the cell that names it;
//  2. pool_pages() are those that hold a copy or are kept free for the next ones;
//  3. a pool page with free and used cells is in the list of its class.
class CompressedPages {
 public:
  static constexpr size_t kMaxBytes = 2036;  // of a copy: two of them are in one pool page
  static constexpr uint32_t kMaxFree = 16;   // pool pages that trim() leaves without a copy
  // In one call of trim(): each costs a system call, and the evictor has other work.
  static constexpr uint32_t kMaxTrim = 1024;

  // For pages 0 to `pages` - 1. 0: there are no copies, and insert() is not called.
  static Result<CompressedPages> create(uint64_t pages);
  CompressedPages(CompressedPages&&) noexcept;
  ~CompressedPages();

  bool enabled() const { return index_memory_.valid(); }
  // Keeps a copy of 1 to kMaxBytes bytes in place of an earlier one. The pool does not grow beyond
  // `most_pages`: then the oldest copies go. False: it was not kept, and there is none.
  // `moment`: see Copy.
  bool insert(PageIndex page, std::span<const std::byte> copy, uint64_t most_pages,
              uint32_t moment);
  struct Copy {
    size_t bytes = 0;
    uint32_t moment = 0;  // what insert() was given
  };
  // Moves the copy into `out`, which has kMaxBytes; nullopt: there is none any more.
  std::optional<Copy> take(PageIndex page, std::span<std::byte> out);
  // Is there one? Without a lock: it may go at any time.
  bool has(PageIndex page) const {
    return enabled() && index()[page.value].load(std::memory_order_relaxed) != 0;
  }
  void forget(PageIndex page);
  // Drops copies until the pool has at most `most_pages`, and gives memory without copies back: at
  // most kMaxTrim pool pages of it.
  void trim(uint64_t most_pages);

  // Of memory, in use or kept free: they count against the budget.
  uint64_t pool_pages() const { return pool_pages_.load(std::memory_order_relaxed); }
  uint64_t copies() const { return copies_.load(std::memory_order_relaxed); }
  // Sum of the copies' sizes.
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  // Copies that went unused: their room was needed, or the page was discarded or written anew.
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

  // For tests.
  Status check_invariants() const;

 private:
  struct Pool;

  CompressedPages();
  std::atomic<uint32_t>* index() const {
    return reinterpret_cast<std::atomic<uint32_t>*>(index_memory_.data());
  }
  void drop_copy(PageIndex page) FARPAGE_REQUIRES(mutex_);
  bool empty_oldest() FARPAGE_REQUIRES(mutex_);
  uint32_t find_room(size_t size_class, uint64_t most_pages) FARPAGE_REQUIRES(mutex_);
  void release(uint32_t location) FARPAGE_REQUIRES(mutex_);

  Mapping index_memory_;  // a location for each page, 0: none; touched only where pages have one
  mutable Mutex mutex_;
  std::unique_ptr<Pool> pool_ FARPAGE_GUARDED_BY(mutex_);
  std::atomic<uint64_t> pool_pages_{0}, copies_{0}, bytes_{0}, dropped_{0};
};

}  // namespace farpage::pager
