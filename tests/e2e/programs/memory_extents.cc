// Memory that the program places outside of the window.
#include <linux/mman.h>
#include <sys/wait.h>

#include <random>
#include <thread>

#include "far_memory.h"

namespace farpage::test {
namespace {

constexpr int kThere = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
constexpr int kOpen = PROT_READ | PROT_WRITE;
constexpr size_t kExtentBytes = 128 << 10;  // the smallest mapping that is far

unsigned char* place(size_t i) {
  const uint64_t begin = (uint64_t{20} << 40) + i * 3 * kExtentBytes;  // with gaps
  return reinterpret_cast<unsigned char*>(begin);
}

Memory map_extent(size_t i) {
  REQUIRE(mmap(place(i), kExtentBytes, kOpen, kThere, -1, 0) == place(i));
  return {place(i), kExtentBytes};
}

// The first and the last page of an extent tell which it is, and how often it was written.
Memory ends_of(size_t i, size_t end) {
  return {place(i) + (end == 0 ? 0 : kExtentBytes - kPage), kPage};
}
void mark(size_t i, uint32_t seed) {
  for (size_t end = 0; end < 2; ++end) fill(ends_of(i, end), seed + static_cast<uint32_t>(i));
}
bool is_marked(size_t i, uint32_t seed) {
  for (size_t end = 0; end < 2; ++end)
    if (!is_filled(ends_of(i, end), seed + static_cast<uint32_t>(i))) return false;
  return true;
}

// 10,000 extents with 80 MiB in use; every other one is given up, and mapped again.
void many_extents() {
  constexpr size_t kExtents = 10'000;
  for (size_t i = 0; i < kExtents; ++i) map_extent(i);
  for (size_t i = 0; i < kExtents; ++i) mark(i, 1);
  for (size_t i = 0; i < kExtents; ++i) REQUIRE(is_marked(i, 1));
  for (size_t i = 0; i < kExtents; i += 2) REQUIRE(munmap(place(i), kExtentBytes) == 0);
  for (size_t i = 0; i < kExtents; i += 2) {
    unsigned char byte = 0;
    REQUIRE(mincore(place(i), kPage, &byte) != 0 && errno == ENOMEM);
    map_extent(i);
    REQUIRE(is_zero(ends_of(i, 0)) && is_zero(ends_of(i, 1)));
    mark(i, 2);
  }
  for (size_t i = 0; i < kExtents; ++i) REQUIRE(is_marked(i, i % 2 == 0 ? 2 : 1));
}

// One call for many extents, for what lies between them, and for parts of the first and the last.
void calls_across_extents() {
  constexpr size_t kExtents = 40;
  for (size_t i = 0; i < kExtents; ++i) fill(map_extent(i), static_cast<uint32_t>(i));
  const auto is_right = [](size_t i) {
    return is_filled({place(i), kExtentBytes}, static_cast<uint32_t>(i));
  };
  push_out({place(0), kExtentBytes});
  REQUIRE(is_right(0));
  unsigned char* begin = place(1) + kExtentBytes / 2;
  const size_t bytes = static_cast<size_t>(place(8) + kExtentBytes / 2 - begin);
  REQUIRE(munmap(begin, bytes) == 0);
  REQUIRE(is_filled(Memory{place(1), kExtentBytes / 2}, 1));
  REQUIRE(is_filled(Memory{place(8) + kExtentBytes / 2, kExtentBytes / 2}, 8,
                    kExtentBytes / kPage / 2));
  for (size_t i = 9; i < kExtents; ++i) REQUIRE(is_right(i));
  // A new mapping over the hole, half of the extents and the gaps: zeros.
  unsigned char* over = place(1) + kExtentBytes / 4;
  const size_t over_bytes = static_cast<size_t>(place(12) - over);
  constexpr int kOver = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  REQUIRE(mmap(over, over_bytes, kOpen, kOver, -1, 0) == over);
  REQUIRE(is_zero({over, over_bytes}) && is_right(12));
  fill({over, over_bytes}, 100);
  push_out({over, over_bytes});
  REQUIRE(is_filled({over, over_bytes}, 100));
  REQUIRE(is_filled(Memory{place(1), kExtentBytes / 4}, 1));
  // Local memory over far memory, and shared memory in a reservation.
  REQUIRE(mmap(over, kPage, PROT_NONE, kOver, -1, 0) == over);
  REQUIRE(mprotect(over, kPage, kOpen) == 0 && is_zero({over, kPage}));
  REQUIRE(is_filled(Memory{over, over_bytes}.part(1, 15), 100, 1));
  // Locked pages stay, those of all extents.
  const Memory all{place(12), static_cast<size_t>(place(20) - place(12))};
  REQUIRE(mlock(place(12), kExtentBytes) == 0);
  churn(32 * kMiB);
  REQUIRE(resident_pages({place(12), kExtentBytes}) == kExtentBytes / kPage);
  REQUIRE(munlock(place(12), kExtentBytes) == 0);
  REQUIRE(munmap(all.begin, all.bytes) == 0);
  for (size_t i = 20; i < kExtents; ++i) REQUIRE(is_right(i));
}

// Threads map, use and unmap extents of their own at the same places again and again, while other
// threads fork, and the children check what does not change.
void extents_come_and_go() {
  constexpr size_t kKept = 64;
  constexpr size_t kOfThread = 16;
  for (size_t i = 0; i < kKept; ++i) map_extent(i);
  for (size_t i = 0; i < kKept; ++i) fill({place(i), kExtentBytes}, static_cast<uint32_t>(i));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 3; ++t)
    threads.emplace_back([&stop, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      const size_t first = 1000 * (t + 1);
      std::vector<uint32_t> version(kOfThread, 0);
      for (uint32_t round = 1; !stop.load(); ++round) {
        const size_t i = random() % kOfThread;
        if (version[i] == 0) {
          map_extent(first + i);
          REQUIRE(is_zero({place(first + i), kExtentBytes}));
          version[i] = round;
          mark(first + i, round);
        } else {
          REQUIRE(is_marked(first + i, version[i]));
          REQUIRE(munmap(place(first + i), kExtentBytes) == 0);
          version[i] = 0;
        }
      }
    });
  for (int round = 0; round < 12; ++round) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      bool right = true;
      for (size_t i = 0; i < kKept; ++i)
        right = right && is_filled({place(i), kExtentBytes}, static_cast<uint32_t>(i));
      map_extent(kKept + 1);  // of its own
      fill({place(kKept + 1), kExtentBytes}, 7);
      _exit(right && is_filled({place(kKept + 1), kExtentBytes}, 7) ? 0 : 1);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < kKept; ++i)
    REQUIRE(is_filled({place(i), kExtentBytes}, static_cast<uint32_t>(i)));
}

// ---- mremap of memory of which parts are too small to be far. Prints what a program sees of it,
// which is to be the same without far memory ----

// What is in each page, as a program finds it: - nothing, 0 zeros, = its bytes, ? others.
void print_pages(const char* name, unsigned char* begin, size_t pages) {
  printf(" %s", name);
  char last = 0;
  size_t count = 0;
  for (size_t i = 0; i <= pages; ++i) {
    const Memory page{begin + i * kPage, kPage};
    unsigned char byte = 0;
    const bool here = i < pages && mincore(page.begin, kPage, &byte) == 0;
    const char seen = !here ? '-' : is_zero(page) ? '0' : is_filled(page, 12, i) ? '=' : '?';
    if (i > 0 && (i == pages || seen != last)) {
      printf(" %zu%c", count, last);
      count = 0;
    }
    last = seen;
    ++count;
  }
}

struct Remap {
  const char* name;
  int flags;
  int more_pages;
  bool wall;  // behind the old range
};
constexpr Remap kRemaps[] = {
    {"same size", 0, 0, true},
    {"one page less", 0, -1, true},
    {"half a far piece less", 0, -50, false},
    {"grow", 0, 40, false},
    {"grow without room", 0, 40, true},
    {"grow, or move", MREMAP_MAYMOVE, 40, true},
    {"there, larger", MREMAP_MAYMOVE | MREMAP_FIXED, 40, false},
    {"there, smaller", MREMAP_MAYMOVE | MREMAP_FIXED, -6, false},
    {"there, same size", MREMAP_MAYMOVE | MREMAP_FIXED, 0, false},
    {"away, keep old", MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0, false},
    {"there, keep old", MREMAP_MAYMOVE | MREMAP_DONTUNMAP | MREMAP_FIXED, 0, false},
};

struct Pieces {
  const char* name;
  std::vector<size_t> pages;  // of each mapping; one of 32 and more is far
  size_t hole = 0;            // the page that is not mapped
  size_t closed = 0;          // the page that is read-only
};

void remap(const Pieces& pieces, const Remap& how) {
  constexpr size_t kMostPages = 300;
  unsigned char* const there = place(31'000);
  Memory old{place(30'000), 0};
  for (const size_t pages : pieces.pages) {
    unsigned char* const at = old.begin + old.bytes;
    REQUIRE(mmap(at, pages * kPage, kOpen, kThere, -1, 0) == at);
    old.bytes += pages * kPage;
  }
  fill(old, 12);
  const Memory behind{old.begin + old.bytes, kPage};
  if (how.wall)
    REQUIRE(mmap(behind.begin, kPage, kOpen, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
            behind.begin);
  if (pieces.closed > 0) REQUIRE(mprotect(old.part(pieces.closed, 1).begin, kPage, PROT_READ) == 0);
  if (pieces.hole > 0) REQUIRE(munmap(old.part(pieces.hole, 1).begin, kPage) == 0);
  churn(4 * kMiB);
  const size_t pages = old.pages() + static_cast<size_t>(how.more_pages);
  errno = 0;
  void* const to = (how.flags & MREMAP_FIXED) != 0 ? there : nullptr;
  void* const result = mremap(old.begin, old.bytes, pages * kPage, how.flags, to);
  const int error = errno;
  auto* const moved = static_cast<unsigned char*>(result);
  printf("%s, %s: %s, errno %d;", pieces.name, how.name,
         result == MAP_FAILED  ? "failed"
         : result == old.begin ? "in place"
         : result == there     ? "there"
                               : "elsewhere",
         error);
  print_pages("old", old.begin, kMostPages);
  if (result != MAP_FAILED && result != old.begin) print_pages("new", moved, pages);
  if (result != MAP_FAILED && pieces.hole == 0 && pieces.closed == 0) {
    fill({moved, pages * kPage}, 13);
    churn(4 * kMiB);
    printf(" and %s", is_filled(Memory{moved, pages * kPage}, 13) ? "writable" : "wrong");
  }
  printf("\n");
  if (result != MAP_FAILED) REQUIRE(munmap(result, pages * kPage) == 0);
  REQUIRE(munmap(old.begin, kMostPages * kPage) == 0);
}

void remap_pieces() {
  const std::vector<Pieces> kinds = {
      {"far, local", {64, 4}},
      {"local, far", {4, 64}},
      {"far, local, far", {64, 4, 64}},
      {"local, far, local", {4, 64, 4}},
      {"a hole in the local piece", {64, 8}, 66},
      {"a hole in the far piece", {64, 8}, 30},
      {"a read-only page in the local piece", {64, 8}, 0, 69},
      {"a read-only page in the far piece", {8, 64}, 0, 69},
  };
  for (const Pieces& pieces : kinds)
    for (const Remap& how : kRemaps) {
      // Linux moves several mappings at once from 6.17 on, and kernels differ in what is left where
      // they refuse that.
      const bool several = pieces.closed > 0 && how.more_pages == 0;
      if ((how.flags & MREMAP_FIXED) == 0 || (pieces.hole == 0 && !several)) remap(pieces, how);
    }
}

}  // namespace

const std::vector<Scenario> kExtentScenarios = {
    {"many-extents", many_extents},
    {"calls-across-extents", calls_across_extents},
    {"extents-come-and-go", extents_come_and_go},
    {"remap-pieces", remap_pieces},
};

}  // namespace farpage::test
