// What the programs of memory_calls_test.py share: far memory with known bytes, and the kernel's
// view of which pages are resident.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/require.h"

namespace farpage::test {

inline constexpr size_t kPage = 4096;
inline constexpr size_t kMiB = 1 << 20;

struct Memory {
  unsigned char* begin;
  size_t bytes;

  size_t pages() const { return bytes / kPage; }
  Memory part(size_t first_page, size_t page_count) const {
    return {begin + first_page * kPage, page_count * kPage};
  }
};

// Far memory outside of the window, made of several extents: the last one is mapped first, so the
// page numbers do not follow the addresses.
inline unsigned char* map_extents(size_t bytes) {
  constexpr size_t kPart = 256 << 10;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
  static std::atomic<uint64_t> next{uint64_t{16} << 40};
  const uint64_t begin = next.fetch_add(bytes + (64 << 20));
  for (size_t end = bytes; end > 0;) {
    const size_t part = end % kPart != 0 ? end % kPart : kPart;
    const size_t size = end < 2 * kPart ? end : part;  // none is too small to be far
    void* at = reinterpret_cast<void*>(begin + end - size);
    REQUIRE(mmap(at, size, PROT_READ | PROT_WRITE, kFlags, -1, 0) == at);
    end -= size;
  }
  return reinterpret_cast<unsigned char*>(begin);
}

inline bool uses_extents() {
  return getenv("FARPAGE_TEST_EXTENTS") != nullptr;
}

inline Memory map_far(size_t bytes) {
  if (uses_extents()) return {map_extents(bytes), bytes};
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(address != MAP_FAILED);
  return {static_cast<unsigned char*>(address), bytes};
}

// Each word of page i has its own value: no word is zero, and no two pages are equal.
inline uint64_t word_of(uint32_t seed, size_t index) {
  return (index + 1) * 0x9E3779B97F4A7C15ULL + seed;
}
inline void fill(Memory memory, uint32_t seed) {
  auto* words = reinterpret_cast<volatile uint64_t*>(memory.begin);
  for (size_t i = 0; i < memory.bytes / 8; ++i) words[i] = word_of(seed, i);
}
// `from_page`: the range begins at this page of a filled one.
inline bool is_filled(Memory memory, uint32_t seed, size_t from_page = 0) {
  auto* words = reinterpret_cast<volatile uint64_t*>(memory.begin);
  const size_t before = from_page * kPage / 8;
  for (size_t i = 0; i < memory.bytes / 8; ++i)
    if (words[i] != word_of(seed, before + i)) return false;
  return true;
}
inline bool is_zero(Memory memory) {
  auto* words = reinterpret_cast<volatile uint64_t*>(memory.begin);
  for (size_t i = 0; i < memory.bytes / 8; ++i)
    if (words[i] != 0) return false;
  return true;
}

// mincore(2): does not touch the pages.
inline size_t resident_pages(Memory memory) {
  std::vector<unsigned char> here(memory.pages());
  REQUIRE(mincore(memory.begin, memory.bytes, here.data()) == 0);
  size_t count = 0;
  for (const unsigned char page : here) count += page & 1;
  return count;
}

// A condition that another thread or process fulfils soon.
template <typename Condition>
void wait_until(Condition condition) {
  for (int tries = 0; tries < 30'000; ++tries) {
    if (condition()) return;
    usleep(1000);
  }
  REQUIRE(!"it came true in 30 s");
}

inline void push_out(Memory memory) {
  wait_until([memory] {
    REQUIRE(madvise(memory.begin, memory.bytes, MADV_PAGEOUT) == 0);
    return resident_pages(memory) == 0;
  });
  // The last hints may still be queued, and would evict pages that are fetched from now on. Hints
  // are executed in order.
  const Memory marker = map_far(kMiB);
  fill(marker, 1);
  wait_until([marker] {
    REQUIRE(madvise(marker.begin, marker.bytes, MADV_PAGEOUT) == 0);
    return resident_pages(marker) == 0;
  });
  REQUIRE(munmap(marker.begin, marker.bytes) == 0);
}

// Writes and reads so much that every page that may be evicted is.
inline void churn(size_t bytes) {
  const Memory other = map_far(bytes);
  for (uint32_t round = 0; round < 2; ++round) fill(other, round);
  REQUIRE(is_filled(other, 1));
  REQUIRE(munmap(other.begin, other.bytes) == 0);
}

struct Scenario {
  const char* name;
  void (*run)();
};
extern const std::vector<Scenario> kExtentScenarios;   // memory_extents.cc
extern const std::vector<Scenario> kMappingScenarios;  // memory_mappings.cc
extern const std::vector<Scenario> kAdviceScenarios;   // memory_advice.cc
extern const std::vector<Scenario> kKernelScenarios;   // memory_kernel.cc

}  // namespace farpage::test
