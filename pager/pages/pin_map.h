// PinMap: which pages the target has locked into memory (mlock), one bit a page.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/mapping.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/state_store.h"
#include "uffd/address_space.h"

namespace farpage::pager {

// Threads: any. Invariant: pinned_pages() is the number of bits that are set, at most the limit.
class PinMap {
 public:
  // `limit_pages`: how many pages may be pinned at once.
  static Result<PinMap> create(uint64_t pages, uint64_t limit_pages);
  // In `memory`, of memory_bytes(pages): zeros, but for what a dead process has left in `parts`.
  static PinMap create(uint64_t limit_pages, Mapping memory,
                       std::span<const StateStore::Part> parts);
  static size_t memory_bytes(uint64_t pages) { return (pages + 63) / 64 * sizeof(uint64_t); }
  PinMap(PinMap&& other) noexcept;

  bool is_pinned(PageIndex page) const {
    return (words()[page.value / 64].load(std::memory_order_acquire) >> (page.value % 64) & 1) != 0;
  }
  // All pages of the run or, when that would be more than the limit, none: false.
  bool pin(uffd::PageRun run);
  void unpin(uffd::PageRun run);
  // Sets a new limit; false: more is pinned than that, and the limit stays.
  bool set_limit(uint64_t limit_pages);
  uint64_t pinned_pages() const { return pinned_.load(std::memory_order_relaxed); }

 private:
  PinMap(Mapping memory, uint64_t limit_pages)
      : memory_(std::move(memory)), limit_pages_(limit_pages) {}
  std::atomic<uint64_t>* words() const {
    return reinterpret_cast<std::atomic<uint64_t>*>(memory_.data());
  }

  Mapping memory_;  // zeroed: none; touched only where pages are pinned
  uint64_t limit_pages_ FARPAGE_GUARDED_BY(mutex_);
  Mutex mutex_;  // one change at a time; readers take no lock
  std::atomic<uint64_t> pinned_{0};
};

}  // namespace farpage::pager
