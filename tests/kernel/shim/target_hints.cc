// Mappings at an address that the program wishes for.
#include <sys/mman.h>
#include <unistd.h>

#include "scenario.h"

namespace farpage::test {
namespace {

constexpr size_t kReservationBytes = 64 * kMiB;

unsigned char* at(uint64_t address) {
  return reinterpret_cast<unsigned char*>(address);
}

unsigned char* reserve(uint64_t hint, int more_flags = MAP_NORESERVE, int protection = PROT_NONE) {
  void* memory = mmap(at(hint), kReservationBytes, protection,
                      MAP_PRIVATE | MAP_ANONYMOUS | more_flags, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  return static_cast<unsigned char*>(memory);
}

// As who needs the address does: false when the reservation lay elsewhere, and is gone again.
bool insist(uint64_t hint, int more_flags = MAP_NORESERVE, int protection = PROT_NONE) {
  unsigned char* memory = reserve(hint, more_flags, protection);
  REQUIRE(memory == at(hint) || munmap(memory, kReservationBytes) == 0);
  return memory == at(hint);
}

constexpr uint64_t kTiB = uint64_t{1} << 40;

}  // namespace

// Allocators and runtimes that pass hints and do without.
int run_casual_hints(const char*) {
  const uint64_t low = kTiB / 4;
  for (uint64_t i = 0; i < 30; ++i) {
    REQUIRE(!insist(low + i * kReservationBytes));           // a JVM's compressed pointers
    REQUIRE(!insist((uint64_t{0xc0} << 32) + i * kTiB, 0));  // Go
    REQUIRE(!insist(5 * kTiB + i * kReservationBytes, MAP_NORESERVE, PROT_READ | PROT_WRITE));
  }
  // Used, and given back later; or something else comes between.
  unsigned char* used = reserve(5 * kTiB);
  REQUIRE(mprotect(used, kMiB, PROT_READ | PROT_WRITE) == 0);
  fill(used, kMiB, 1);
  REQUIRE(munmap(used, kReservationBytes) == 0);
  unsigned char* kept = reserve(6 * kTiB);
  unsigned char* other = map_memory(kMiB);
  REQUIRE(munmap(kept, kReservationBytes) == 0);
  unsigned char* trimmed = reserve(7 * kTiB);
  REQUIRE(munmap(trimmed + kMiB, kReservationBytes - kMiB) == 0);
  tell("other", other, kMiB);
  tell("trimmed", trimmed, kMiB);
  tell("last", reserve(8 * kTiB), kReservationBytes);
  return 0;
}

// OpenJDK's ZGC: views of one heap at addresses of its own.
int run_needed_hints(const char*) {
  REQUIRE(!insist(4 * kTiB));  // the first one shows what the program is like
  REQUIRE(insist(4 * kTiB) && insist(8 * kTiB) && insist(16 * kTiB));
  REQUIRE(!is_readable(at(4 * kTiB)));
  const int heap = memfd_create("heap", 0);
  REQUIRE(heap >= 0 && ftruncate(heap, kMiB) == 0);
  for (const uint64_t view : {4 * kTiB, 8 * kTiB, 16 * kTiB}) {
    REQUIRE(mmap(at(view), kMiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, heap, 0) ==
            at(view));
  }
  fill(at(4 * kTiB), kMiB, 9);
  REQUIRE(is_filled(at(16 * kTiB), kMiB, 9));
  // What is there already stays there.
  unsigned char* elsewhere = reserve(8 * kTiB + kMiB);
  REQUIRE(elsewhere != at(8 * kTiB + kMiB) && is_filled(at(8 * kTiB), kMiB, 9));
  tell("elsewhere", elsewhere, kReservationBytes);
  tell("heap", map_memory(kMiB), kMiB);
  // An allocator in the same program stays far.
  unsigned char* segment = reserve(20 * kTiB, MAP_NORESERVE, PROT_READ | PROT_WRITE);
  tell("segment", segment, kReservationBytes);
  return 0;
}

}  // namespace farpage::test
