#include "bench/touch_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace farpage::bench {

std::string_view to_string(Pattern pattern) {
  switch (pattern) {
    case Pattern::kRandom:
      return "random";
    case Pattern::kSequential:
      return "sequential";
    case Pattern::kStrided:
      return "strided";
    case Pattern::kZipf:
      return "zipf";
  }
  return "unknown";
}

std::optional<Pattern> pattern_from(std::string_view name) {
  for (const Pattern pattern : kPatterns)
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

ZipfRanks::ZipfRanks(uint64_t count) : count_(count) {
  const auto zeta = [](uint64_t n) {
    double sum = 0;
    for (uint64_t i = 1; i <= n; ++i) sum += std::pow(static_cast<double>(i), -kZipfExponent);
    return sum;
  };
  zeta_ = zeta(count);
  alpha_ = 1 / (1 - kZipfExponent);
  eta_ =
      (1 - std::pow(2.0 / static_cast<double>(count), 1 - kZipfExponent)) / (1 - zeta(2) / zeta_);
}

uint64_t ZipfRanks::next(Random& random) const {
  const double uniform = static_cast<double>(random.next() >> 11) * 0x1p-53;
  const double scaled = uniform * zeta_;
  if (scaled < 1) return 0;
  if (scaled < 1 + std::pow(0.5, kZipfExponent)) return std::min<uint64_t>(1, count_ - 1);
  const double rank = static_cast<double>(count_) * std::pow(eta_ * uniform - eta_ + 1, alpha_);
  return std::min(static_cast<uint64_t>(rank), count_ - 1);
}

TouchOrder::TouchOrder(Pattern pattern, PageShare share, uint64_t seed)
    : pattern_(pattern), share_(share), random_(seed) {
  if (pattern != Pattern::kZipf) return;
  ranks_.emplace(share.pages);
  page_of_rank_ = distinct_pages(Pattern::kRandom, share, share.pages, ~seed);
}

uint64_t TouchOrder::next() {
  switch (pattern_) {
    case Pattern::kRandom:
      return share_.first + random_.below(share_.pages);
    case Pattern::kZipf:
      return page_of_rank_[ranks_->next(random_)];
    case Pattern::kStrided:
      return next_strided();
    case Pattern::kSequential:
      break;
  }
  const uint64_t page = share_.first + position_;
  position_ = (position_ + 1) % share_.pages;
  return page;
}

uint64_t TouchOrder::next_strided() {
  const uint64_t page = share_.first + position_;
  position_ += kStridePages;
  if (position_ >= share_.pages) position_ = (position_ + 1) % kStridePages % share_.pages;
  return page;
}

std::vector<uint64_t> distinct_pages(Pattern pattern, PageShare share, uint64_t count,
                                     uint64_t seed) {
  FARPAGE_CHECK(count <= share.pages, "%llu pages of %llu", static_cast<unsigned long long>(count),
                static_cast<unsigned long long>(share.pages));
  std::vector<uint64_t> pages(share.pages);
  if (pattern == Pattern::kStrided) {
    TouchOrder order(pattern, share, seed);
    for (uint64_t& page : pages) page = order.next();
  } else {
    std::iota(pages.begin(), pages.end(), share.first);
  }
  if (pattern == Pattern::kRandom || pattern == Pattern::kZipf) {
    Random random(seed);
    for (uint64_t i = 0; i < count; ++i)  // partial Fisher-Yates shuffle
      std::swap(pages[i], pages[i + random.below(share.pages - i)]);
  }
  pages.resize(count);
  return pages;
}

}  // namespace farpage::bench
