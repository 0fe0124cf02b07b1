// page_checksums: what the checksum of a page costs, by candidates: of one page that is in the
// cache already, and of pages that are not. See docs/experiments/checksums.md.
#include <cstdio>
#include <span>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>
#ifdef __x86_64__
#include <nmmintrin.h>
#endif

#include <algorithm>

#include "base/clock.h"
#include "base/mapping.h"
#include "base/strong.h"
#include "pager/pages/slot_checksums.h"

namespace {

using farpage::kPageBytes;
using farpage::Mapping;

constexpr size_t kPages = 1 << 16;    // 256 MiB, more than caches have
constexpr size_t kPagesOfRound = 64;  // some 30 us, so that few rounds are interrupted
constexpr int kRounds = 2000;

const std::byte* page_at(const Mapping& memory, size_t page) {
  return memory.data() + page * kPageBytes;
}

// The tenth percentile of the rounds, ns for one page: others use this machine too.
template <typename Function>
double measure(const Mapping& memory, bool cold, Function function) {
  std::vector<double> rounds;
  uint64_t sum = 0;
  size_t page = 0;
  for (int round = 0; round < kRounds; ++round) {
    const farpage::Instant start = farpage::SteadyClock::read();
    for (size_t i = 0; i < kPagesOfRound; ++i) {
      page = (page + 40503) % kPages;  // each is used once in a while
      sum += function(page_at(memory, cold ? page : i % 4));
    }
    const auto taken = farpage::SteadyClock::read() - start;
    rounds.push_back(static_cast<double>(taken.count()) / kPagesOfRound);
  }
  if (sum == 1) std::printf("\n");  // the sum is used
  std::ranges::nth_element(rounds, rounds.begin() + kRounds / 10);
  return rounds[kRounds / 10];
}

template <typename Function>
void row(const Mapping& memory, const char* name, Function function) {
  std::printf("%-34s  %8.0f ns  %8.0f ns\n", name, measure(memory, false, function),
              measure(memory, true, function));
}

#ifdef __x86_64__
// Three streams hide the latency of the instruction (Gopal et al., Intel 2011); how they are joined
// does not matter for the time.
__attribute__((target("sse4.2"))) uint64_t crc32c_in_three(const std::byte* page) {
  const auto* words = reinterpret_cast<const uint64_t*>(page);
  constexpr size_t kThird = kPageBytes / 8 / 3;
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t c = 0;
  for (size_t i = 0; i < kThird; ++i) {
    a = _mm_crc32_u64(a, words[i]);
    b = _mm_crc32_u64(b, words[kThird + i]);
    c = _mm_crc32_u64(c, words[2 * kThird + i]);
  }
  for (size_t i = 3 * kThird; i < kPageBytes / 8; ++i) c = _mm_crc32_u64(c, words[i]);
  return a ^ (b << 1) ^ (c << 2);
}

__attribute__((target("sse4.2"))) uint64_t crc32c_in_one(const std::byte* page) {
  const auto* words = reinterpret_cast<const uint64_t*>(page);
  uint64_t sum = 0;
  for (size_t i = 0; i < kPageBytes / 8; ++i) sum = _mm_crc32_u64(sum, words[i]);
  return sum;
}
#endif

}  // namespace

int main() {
  auto memory = Mapping::anonymous(kPages * kPageBytes);
  auto table = Mapping::anonymous(farpage::pager::SlotChecksums::memory_bytes(1));
  if (!memory || !table) return 1;
  for (size_t i = 0; i < memory->size(); i += 8)
    *reinterpret_cast<uint64_t*>(memory->data() + i) = i * 0x9E3779B97F4A7C15;
  const farpage::pager::SlotChecksums product(std::move(*table));
  std::printf("%-34s  %11s  %11s\n", "", "in cache", "not");
  row(*memory, "read only", [](const std::byte* page) {
    uint64_t sum = 0;
    for (size_t i = 0; i < kPageBytes; i += 64) sum += *reinterpret_cast<const uint64_t*>(page + i);
    return sum;
  });
  row(*memory, "SlotChecksums",
      [&](const std::byte* page) { return product.of(std::span(page, kPageBytes)); });
  row(*memory, "XXH3, 64 bits, no seed",
      [](const std::byte* page) { return XXH3_64bits(page, kPageBytes); });
  row(*memory, "XXH64", [](const std::byte* page) { return XXH64(page, kPageBytes, 1); });
#ifdef __x86_64__
  row(*memory, "crc32c, one stream", crc32c_in_one);
  row(*memory, "crc32c, three streams", crc32c_in_three);
#endif
  return 0;
}
