// Content: the bytes of a benchmark's memory, so that every fetched page can be checked. Each page
// differs from all others, and each write to a page leaves a mark of its own, so a check detects
// lost writes, old versions and swapped pages.
#pragma once

#include <cstdint>
#include <span>

#include "base/strong.h"

namespace farpage::bench {

// Threads: any; immutable.
class Content {
 public:
  static constexpr size_t kWords = kPageBytes / sizeof(uint64_t);
  // The n-th write to a page (n = 1, 2, ...) goes to word n % kMarks: a page holds the
  // marks of its last kMarks writes.
  static constexpr size_t kMarks = 8;

  explicit Content(uint64_t seed) : seed_(seed) {}

  // Writes version 0 of the whole page.
  void fill(uint64_t page, std::span<uint64_t, kWords> words) const;
  // The word and the value of the n-th write. n > 0.
  static size_t mark_word(uint32_t version) { return version % kMarks; }
  uint64_t mark(uint64_t page, uint32_t version) const;
  // Whether these are the words of the page after `version` writes.
  bool holds(uint64_t page, uint32_t version, std::span<const uint64_t, kWords> words) const;

  // The same for memory without marks, as one array of words: page 0, page 1, ...
  void fill_words(uint64_t first_word, std::span<uint64_t> words) const;
  bool holds_words(uint64_t first_word, std::span<const uint64_t> words) const;

 private:
  uint64_t base_of(uint64_t page) const;

  const uint64_t seed_;
};

}  // namespace farpage::bench
