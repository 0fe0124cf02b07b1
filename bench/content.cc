#include "bench/content.h"

namespace farpage::bench {
namespace {

constexpr uint64_t kStep = 0x9E3779B97F4A7C15ULL;  // 2^64 / golden ratio

// The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace

uint64_t Content::base_of(uint64_t page) const {
  return mix(seed_ + (page + 1) * kStep);
}

uint64_t Content::mark(uint64_t page, uint32_t version) const {
  return mix(base_of(page) + version * kStep);
}

void Content::fill(uint64_t page, std::span<uint64_t, kWords> words) const {
  const uint64_t base = base_of(page);
  for (size_t i = 0; i < kWords; ++i) words[i] = base + i * kStep;
}

void Content::fill_words(uint64_t first_word, std::span<uint64_t> words) const {
  for (size_t i = 0; i < words.size(); ++i) {
    const uint64_t word = first_word + i;
    words[i] = base_of(word / kWords) + word % kWords * kStep;
  }
}

bool Content::holds_words(uint64_t first_word, std::span<const uint64_t> words) const {
  uint64_t wrong = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const uint64_t word = first_word + i;
    wrong |= words[i] ^ (base_of(word / kWords) + word % kWords * kStep);
  }
  return wrong == 0;
}

bool Content::holds(uint64_t page, uint32_t version,
                    std::span<const uint64_t, kWords> words) const {
  const uint64_t base = base_of(page);
  uint64_t wrong = 0;
  for (size_t i = 0; i < kMarks; ++i) {
    // The latest write to this word; none if that number is below 1.
    const uint32_t ago = static_cast<uint32_t>((version + kMarks - i) % kMarks);
    const uint64_t right = version > ago ? mark(page, version - ago) : base + i * kStep;
    wrong |= words[i] ^ right;
  }
  // No branches, so that the compiler vectorises it: it runs once for each page.
  for (size_t i = kMarks; i < kWords; ++i) wrong |= words[i] ^ (base + i * kStep);
  return wrong == 0;
}

}  // namespace farpage::bench
