// Content: the bytes of a benchmark's memory, so that every fetched page can be checked. Each page
// differs from all others, and each write to a page leaves its own mark. So lost writes, old
// versions and swapped pages are detected.
#pragma once

#include <cstdint>
#include <span>

#include "base/strong.h"

namespace farpage::bench {

// Threads: any; immutable.
class Content {
 public:
  static constexpr size_t kWords = kPageBytes / sizeof(uint64_t);
  // The n-th write to a page (n = 1, 2, ...) goes to word n % kMarks: the marks of the last kMarks
  // writes can be seen.
  static constexpr size_t kMarks = 8;

  explicit Content(uint64_t seed) : seed_(seed) {}

  // Writes all of the page, version 0.
  void fill(uint64_t page, std::span<uint64_t, kWords> words) const;
  // Where the n-th write goes, and what it writes. n > 0.
  static size_t mark_word(uint32_t version) { return version % kMarks; }
  uint64_t mark(uint64_t page, uint32_t version) const;
  // Are these the words of the page after `version` writes?
  bool holds(uint64_t page, uint32_t version, std::span<const uint64_t, kWords> words) const;

  // The same for memory that is never marked, taken as one row of words: page 0, page 1, ...
  void fill_words(uint64_t first_word, std::span<uint64_t> words) const;
  bool holds_words(uint64_t first_word, std::span<const uint64_t> words) const;

 private:
  uint64_t base_of(uint64_t page) const;

  const uint64_t seed_;
};

}  // namespace farpage::bench
