// Replacement policies of the literature, with which replay compares the pager. Each sees every
// access. All except S3-FIFO are textbook policies.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "pager/access_trace.h"

namespace farpage::bench {

using pager::AccessKind;
using pager::AccessTrace;
using pager::PageAccess;

// What a policy has done so far besides misses.
struct PolicyCounts {
  uint64_t pages_ahead = 0;   // brought in without a touch
  uint64_t reads_ahead = 0;   // for them
  uint64_t write_faults = 0;  // writes to pages that were write-protected
  uint64_t written_back = 0;  // pages that had been written when they left
  // Pages that left as if they had been: write-protected, copied and compared in vain.
  uint64_t unchanged = 0;

  PolicyCounts operator-(const PolicyCounts& before) const {
    return {.pages_ahead = pages_ahead - before.pages_ahead,
            .reads_ahead = reads_ahead - before.reads_ahead,
            .write_faults = write_faults - before.write_faults,
            .written_back = written_back - before.written_back,
            .unchanged = unchanged - before.unchanged};
  }
};

// Threads: one.
// Invariant: at most `capacity` pages are resident after each touch.
class ReplacementPolicy {
 public:
  virtual ~ReplacementPolicy() = default;
  // A read or a write: makes the page resident. Returns whether it was resident before.
  virtual bool touch(PageAccess access) = 0;
  // The program has given up its content: the page needs no room until its next touch, and is then
  // a new one.
  virtual void discard(uint32_t page) = 0;
  virtual PolicyCounts counts() const { return {}; }
};

// For each policy: page numbers are below `pages`; at most `capacity` >= 1 pages are resident.

// Resident pages in an order, newest first.
class PageList {
 public:
  explicit PageList(uint64_t pages) : listed_(pages), place_(pages) {}

  uint64_t size() const { return order_.size(); }
  bool has(uint32_t page) const { return listed_[page]; }
  void add(uint32_t page);
  void renew(uint32_t page) { order_.splice(order_.begin(), order_, place_[page]); }
  // False: it was not there.
  bool remove(uint32_t page);
  uint32_t oldest() const { return order_.back(); }
  void remove_oldest() { (void)remove(order_.back()); }

 private:
  std::list<uint32_t> order_;
  std::vector<bool> listed_;
  std::vector<std::list<uint32_t>::iterator> place_;
};

// Evicts pages in the order of their installation.
class Fifo final : public ReplacementPolicy {
 public:
  Fifo(uint64_t pages, uint64_t capacity) : capacity_(capacity), resident_(pages) {}
  bool touch(PageAccess access) override;
  void discard(uint32_t page) override { (void)resident_.remove(page); }

 private:
  const uint64_t capacity_;
  PageList resident_;
};

// A hand cycles through the frames and evicts the first page not touched since its last visit
// (Corbato, "A paging experiment with the Multics system", 1969). A new page counts as untouched.
class Clock final : public ReplacementPolicy {
 public:
  Clock(uint64_t pages, uint64_t capacity)
      : frame_of_(pages, kNowhere), accessed_(pages), frames_(capacity, kNobody) {}
  bool touch(PageAccess access) override;
  void discard(uint32_t page) override;

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  static constexpr uint32_t kNobody = UINT32_MAX;
  uint64_t free_frame();

  std::vector<uint32_t> frame_of_;
  std::vector<bool> accessed_;
  std::vector<uint32_t> frames_;  // the page of each
  uint64_t hand_ = 0;
};

// Evicts the least recently touched page.
class Lru final : public ReplacementPolicy {
 public:
  Lru(uint64_t pages, uint64_t capacity) : capacity_(capacity), resident_(pages) {}
  bool touch(PageAccess access) override;
  void discard(uint32_t page) override { (void)resident_.remove(page); }

 private:
  const uint64_t capacity_;
  PageList resident_;
};

// S3-FIFO: a small queue that filters out pages touched only once, a main queue, and a ghost queue
// of page numbers evicted from the small one (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all
// you need for cache eviction", SOSP 2023, algorithm 1). The small queue is a tenth of the
// capacity, the ghost queue has as many entries as the main one, counters saturate at 3. As the
// paper proposes, a page is in the ghost queue until that many later pages have entered it.
class S3Fifo final : public ReplacementPolicy {
 public:
  S3Fifo(uint64_t pages, uint64_t capacity);
  bool touch(PageAccess access) override;
  void discard(uint32_t page) override;

 private:
  struct Page {
    bool resident = false;
    uint8_t touches = 0;
    uint64_t ghost = 0;  // its sequence number in the ghost queue; 0: not in it
  };
  void evict();
  void evict_small();
  void evict_main();
  bool is_ghost(const Page& page) const {
    return page.ghost > 0 && ghosts_ - page.ghost < main_target_;
  }

  const uint64_t capacity_;
  const uint64_t small_target_;
  const uint64_t main_target_;
  std::vector<Page> pages_;
  PageList small_, main_;
  uint64_t ghosts_ = 0;  // pages that ever entered the ghost queue
};

}  // namespace farpage::bench
