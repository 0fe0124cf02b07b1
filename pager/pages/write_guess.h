// WriteGuess: predicts whether a page that is fetched for a read will be written before its
// eviction.
//
// Such a page is write-protected, so that the pager detects its first write, and can drop the page
// without a write-back if there is none. Detecting a write costs a fault and a flush of the other
// cores' TLBs: several times the cost of writing the page back. So if many such pages are written,
// they are installed writable and count as modified. A few stay protected nevertheless, and show
// when the pattern ends.
#pragma once

#include <atomic>
#include <cstdint>

namespace farpage::pager {

// Threads: any. Counts that are lost between threads are harmless: this is a prediction.
class WriteGuess {
 public:
  // For pages that are fetched for a read, or ahead of a walk: all are protected, or none.
  bool protect_next(uint32_t more = 1) {
    const bool sample = (asked_.fetch_add(1, std::memory_order_relaxed) & (kSampleEvery - 1)) == 0;
    if (!sample && likely()) return false;
    const uint32_t pages = protected_.fetch_add(more, std::memory_order_relaxed) + more;
    if (pages < kMemory) return true;
    protected_.store(pages / 2, std::memory_order_relaxed);
    written_.store(written_.load(std::memory_order_relaxed) / 2, std::memory_order_relaxed);
    return true;
  }
  // A protected page is written.
  void written() { written_.fetch_add(1, std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kSampleEvery = 32;
  static constexpr uint32_t kEnough = 64;   // pages before the first prediction
  static constexpr uint32_t kMemory = 512;  // pages; then all counts are halved
  // If one in this many is written, writing the others back costs less than the faults.
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
