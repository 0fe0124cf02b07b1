// extent_lookup: what it costs to find the page number of a faulting address, with 0 to 10,000
// extents beside the window. A fault does this once (uffd/extent_map.h).
#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "base/clock.h"
#include "uffd/extent_map.h"

namespace {

using farpage::kPageBytes;
using farpage::uffd::ExtentMap;

constexpr uint64_t kWindow = uint64_t{1} << 44;
constexpr uint64_t kWindowPages = uint64_t{1} << 24;
constexpr uint64_t kExtents = uint64_t{1} << 43;
constexpr uint64_t kExtentPages = 64;
constexpr size_t kLookups = 1 << 20;

// The median of seven rounds over random addresses, ns for one lookup.
double measure(const ExtentMap& map, const std::vector<uint64_t>& addresses) {
  std::vector<double> rounds;
  uint64_t sum = 0;
  for (int round = 0; round < 7; ++round) {
    const farpage::Instant start = farpage::SteadyClock::read();
    for (const uint64_t address : addresses) sum += map.find(address)->value;
    const auto taken = farpage::SteadyClock::read() - start;
    rounds.push_back(static_cast<double>(taken.count()) / static_cast<double>(addresses.size()));
  }
  std::nth_element(rounds.begin(), rounds.begin() + 3, rounds.end());
  if (sum == 1) std::printf("\n");  // the sum is used
  return rounds[3];
}

}  // namespace

int main() {
  std::mt19937_64 random(1);
  std::printf("extents  in the window  in an extent\n");
  for (const uint64_t extents : {0U, 1U, 16U, 256U, 10'000U}) {
    auto map = ExtentMap::create(kWindow, kWindowPages, kWindowPages);
    if (!map) return 1;
    for (uint64_t i = 0; i < extents; ++i) {
      const uint64_t begin = kExtents + i * 2 * kExtentPages * kPageBytes;
      if (!(*map)->add(begin, begin + kExtentPages * kPageBytes)) return 1;
    }
    std::vector<uint64_t> window;
    std::vector<uint64_t> outside;
    for (size_t i = 0; i < kLookups; ++i) {
      window.push_back(kWindow + random() % (kWindowPages * kPageBytes));
      if (extents > 0)
        outside.push_back(kExtents + random() % extents * 2 * kExtentPages * kPageBytes +
                          random() % (kExtentPages * kPageBytes));
    }
    std::printf("%7llu  %10.1f ns", static_cast<unsigned long long>(extents),
                measure(**map, window));
    if (extents > 0) std::printf("  %9.1f ns", measure(**map, outside));
    std::printf("\n");
  }
  return 0;
}
