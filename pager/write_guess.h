// WriteGuess: will a page that comes in for a read be written before it leaves?
//
// Such a page is write-protected, so that its first write is seen and a page without one leaves for
// nothing. To see a write costs a fault, and a flush of the other cores' TLBs: several times what
// it costs to write a page back. So where many are written, they come in writable, and count as
// changed; a few stay protected all the same, and tell when that is no longer so.
#pragma once

#include <atomic>
#include <cstdint>

namespace farpage::pager {

// Threads: any. A guess: counts that are lost between threads do no harm.
class WriteGuess {
 public:
  // For a page that comes in for a read.
  bool protect_next() {
    const bool sample = (asked_.fetch_add(1, std::memory_order_relaxed) & (kSampleEvery - 1)) == 0;
    if (!sample && likely()) return false;
    protect(1);
    return true;
  }
  // So many were protected without being asked about.
  void protect(uint32_t more) {
    const uint32_t pages = protected_.fetch_add(more, std::memory_order_relaxed) + more;
    if (pages < kMemory) return;
    protected_.store(pages / 2, std::memory_order_relaxed);
    written_.store(written_.load(std::memory_order_relaxed) / 2, std::memory_order_relaxed);
  }
  // One of those that were protected is written.
  void written() { written_.fetch_add(1, std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kSampleEvery = 16;
  static constexpr uint32_t kEnough = 64;   // pages, to guess at all
  static constexpr uint32_t kMemory = 512;  // pages; then what was seen counts half
  // Where one in so many is written, a write-back of the others costs less than the faults.
  static constexpr uint32_t kOneIn = 4;

  bool likely() const {
    const uint32_t pages = protected_.load(std::memory_order_relaxed);
    return pages >= kEnough && written_.load(std::memory_order_relaxed) * kOneIn > pages;
  }

  alignas(64) std::atomic<uint32_t> asked_{0};
  std::atomic<uint32_t> protected_{0};
  std::atomic<uint32_t> written_{0};
};

}  // namespace farpage::pager
