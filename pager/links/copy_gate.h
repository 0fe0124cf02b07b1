// CopyGate: keeps write-back away from the pages that a repair copies from one replica to another.
//
// A copy READs pages and WRITEs them elsewhere. A write-back of one of them in between would be
// overwritten there with older bytes. So these pages are not picked while they are copied, and a
// copy begins when the batch that may have picked them before has ended its WRITEs.
//
// It is Dekker's algorithm: the one side announces its batch and then looks at the range, the other
// one announces its range and then looks at the batch; so one of them sees the other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "pager/links/lease_map.h"

namespace farpage::pager {

// Threads: the thread that evicts, one at a time; and one that copies.
class CopyGate {
 public:
  // -- who evicts --
  // Around what it picks until the last of its WRITEs has ended.
  void begin_writing() { batches_.fetch_add(1, std::memory_order_seq_cst); }
  void end_writing() { batches_.fetch_add(1, std::memory_order_seq_cst); }
  // Of a page, which would be written to that region: it stays.
  bool is_closed(const LeaseMap& leases, PageIndex page) const {
    return leases_.load(std::memory_order_seq_cst) == &leases &&
           page.value - first_.load(std::memory_order_relaxed) <
               pages_.load(std::memory_order_relaxed);
  }

  // -- who copies --
  // Returns what is_quiet() asks for.
  uint64_t close(const LeaseMap& leases, PageIndex first, uint32_t pages) {
    first_.store(first.value, std::memory_order_relaxed);
    pages_.store(pages, std::memory_order_relaxed);
    leases_.store(&leases, std::memory_order_seq_cst);
    return batches_.load(std::memory_order_seq_cst);
  }
  // The batch that was under way at close() has ended: nothing is written there.
  bool is_quiet(uint64_t closed_at) const {
    return closed_at % 2 == 0 || batches_.load(std::memory_order_seq_cst) != closed_at;
  }
  // Waits for that; false: `is_over` has said so before.
  template <typename IsOver>
  bool await_quiet(uint64_t closed_at, IsOver is_over) const {
    constexpr std::chrono::microseconds kPollPause{50};
    while (!is_quiet(closed_at)) {
      if (is_over()) return false;
      std::this_thread::sleep_for(kPollPause);
    }
    return true;
  }
  void open() { leases_.store(nullptr, std::memory_order_seq_cst); }

 private:
  std::atomic<uint64_t> batches_{0};  // begun and ended: odd while one is writing
  std::atomic<const LeaseMap*> leases_{nullptr};
  std::atomic<uint64_t> first_{0};
  std::atomic<uint64_t> pages_{0};
};

}  // namespace farpage::pager
