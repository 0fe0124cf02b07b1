#include "bench/touch_order.h"

#include <numeric>

#include "base/check.h"

namespace farpage::bench {

std::string_view to_string(Pattern pattern) {
  switch (pattern) {
    case Pattern::kRandom:
      return "random";
    case Pattern::kSequential:
      return "sequential";
  }
  return "unknown";
}

std::optional<Pattern> pattern_from(std::string_view name) {
  for (const Pattern pattern : {Pattern::kRandom, Pattern::kSequential})
    if (name == to_string(pattern)) return pattern;
  return std::nullopt;
}

PageShare share_of(uint64_t pages, uint32_t index, uint32_t count) {
  const uint64_t first = pages * index / count;
  return {first, pages * (uint64_t{index} + 1) / count - first};
}

uint64_t Random::next() {
  uint64_t x = state_ += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

uint64_t Random::below(uint64_t bound) {
  FARPAGE_CHECK(bound > 0, "bound %d", 0);
  return next() % bound;
}

uint64_t TouchOrder::next() {
  if (pattern_ == Pattern::kRandom) return share_.first + random_.below(share_.pages);
  const uint64_t page = share_.first + position_;
  position_ = (position_ + 1) % share_.pages;
  return page;
}

std::vector<uint64_t> distinct_pages(Pattern pattern, PageShare share, uint64_t count,
                                     uint64_t seed) {
  FARPAGE_CHECK(count <= share.pages, "%llu pages of %llu", static_cast<unsigned long long>(count),
                static_cast<unsigned long long>(share.pages));
  std::vector<uint64_t> pages(share.pages);
  std::iota(pages.begin(), pages.end(), share.first);
  if (pattern == Pattern::kRandom) {
    Random random(seed);
    for (uint64_t i = 0; i < count; ++i)  // Fisher and Yates, as far as it is needed
      std::swap(pages[i], pages[i + random.below(share.pages - i)]);
  }
  pages.resize(count);
  return pages;
}

}  // namespace farpage::bench
