// TouchOrder: the sequence of pages that a thread touches.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace farpage::bench {

// kStrided: every kStridePages-th page, then their neighbours. kZipf: page number i of a random
// ranking is touched in proportion to 1 / i^0.99, as YCSB does (Cooper et al., SoCC 2010).
enum class Pattern : uint8_t { kRandom, kSequential, kStrided, kZipf };
inline constexpr Pattern kPatterns[] = {Pattern::kRandom, Pattern::kSequential, Pattern::kStrided,
                                        Pattern::kZipf};
inline constexpr uint64_t kStridePages = 7;
inline constexpr double kZipfExponent = 0.99;
std::string_view to_string(Pattern pattern);
std::optional<Pattern> pattern_from(std::string_view name);

// A contiguous share of the pages. Each thread has its own and knows the content of its pages.
struct PageShare {
  uint64_t first = 0;
  uint64_t pages = 0;
};
// Share i of n of `pages` pages; the shares differ by at most one page and cover all.
PageShare share_of(uint64_t pages, uint32_t index, uint32_t count);

// SplitMix64. Threads: one.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // 0 .. bound - 1; the bias is below 2^-32 for any number of pages.
  uint64_t below(uint64_t bound);

 private:
  uint64_t state_;
};

// Ranks 0 .. count - 1 with Zipf's distribution, by the method of Gray et al. ("Quickly generating
// billion-record synthetic databases", SIGMOD 1994). Threads: one.
class ZipfRanks {
 public:
  explicit ZipfRanks(uint64_t count);
  uint64_t next(Random& random) const;

 private:
  uint64_t count_;
  double zeta_, alpha_, eta_;
};

// Pages with repetition. Threads: one.
class TouchOrder {
 public:
  TouchOrder(Pattern pattern, PageShare share, uint64_t seed);
  uint64_t next();

 private:
  uint64_t next_strided();

  const Pattern pattern_;
  const PageShare share_;
  Random random_;
  uint64_t position_ = 0;
  std::optional<ZipfRanks> ranks_;
  std::vector<uint64_t> page_of_rank_;  // for kZipf: scatters the hot pages
};

// `count` distinct pages of the share: the first ones of the pattern; kRandom and kZipf draw them
// at random.
std::vector<uint64_t> distinct_pages(Pattern pattern, PageShare share, uint64_t count,
                                     uint64_t seed);

}  // namespace farpage::bench
