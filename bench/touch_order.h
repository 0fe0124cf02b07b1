// TouchOrder: which page a thread touches next.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace farpage::bench {

enum class Pattern : uint8_t { kRandom, kSequential };
std::string_view to_string(Pattern pattern);
std::optional<Pattern> pattern_from(std::string_view name);

// A contiguous share of the pages: each thread has its own, so that it alone knows what its pages
// hold.
struct PageShare {
  uint64_t first = 0;
  uint64_t pages = 0;
};
// Share i of n of `pages` pages; the shares differ by at most one page and cover all.
PageShare share_of(uint64_t pages, uint32_t index, uint32_t count);

// xoshiro would be better, and nobody could tell: SplitMix64. Threads: one.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // 0 .. bound - 1; the bias is below 2^-32 for any number of pages.
  uint64_t below(uint64_t bound);

 private:
  uint64_t state_;
};

// Pages with repetition: uniform, or round and round. Threads: one.
class TouchOrder {
 public:
  TouchOrder(Pattern pattern, PageShare share, uint64_t seed)
      : pattern_(pattern), share_(share), random_(seed) {}
  uint64_t next();

 private:
  const Pattern pattern_;
  const PageShare share_;
  Random random_;
  uint64_t position_ = 0;
};

// `count` pages of the share, none of them twice: the first ones, or drawn at random.
std::vector<uint64_t> distinct_pages(Pattern pattern, PageShare share, uint64_t count,
                                     uint64_t seed);

}  // namespace farpage::bench
