#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "scenario.h"

namespace farpage::test {

int run_places(const char*) {
  errno = ERANGE;
  unsigned char* passing = map_memory(kMiB);
  REQUIRE(madvise(passing, kMiB, MADV_DONTNEED) == 0 && munmap(passing, kMiB) == 0);
  REQUIRE(errno == ERANGE);
  unsigned char* large = map_memory(kMiB);
  unsigned char* small = map_memory(64 << 10);
  unsigned char* segment = map_memory(32 * kMiB);
  REQUIRE(is_zero(large, kMiB));
  fill(large, kMiB, 1);
  REQUIRE(is_filled(large, kMiB, 1));
  void* reserved =
      mmap(nullptr, kMiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(!is_readable(reserved));
  REQUIRE(mprotect(reserved, kMiB, PROT_READ | PROT_WRITE) == 0);
  fill(static_cast<unsigned char*>(reserved), kMiB, 5);
  void* shared = mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  void* stack =
      mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  errno = 0;
  REQUIRE(mmap(nullptr, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED);
  REQUIRE(errno == EINVAL);
  tell("large", large, kMiB);
  tell("small", small, 64 << 10);
  tell("segment", segment, 32 * kMiB);
  tell("reserved", reserved, kMiB);
  tell("shared", shared, kMiB);
  tell("stack", stack, kMiB);
  return 0;
}

int run_unmap(const char*) {
  const size_t bytes = 64 * kPageSize;
  unsigned char* memory = map_memory(bytes);
  fill(memory, bytes, 10);
  unsigned char* middle = memory + 16 * kPageSize;
  REQUIRE(munmap(middle, 32 * kPageSize) == 0);
  REQUIRE(!is_readable(middle) && !is_readable(middle + 31 * kPageSize));
  REQUIRE(is_filled(memory, 16 * kPageSize, 10));
  REQUIRE(is_filled(memory + 48 * kPageSize, 16 * kPageSize, 10 + 48));
  unsigned char* again = map_memory(32 * kPageSize);
  REQUIRE(again == middle);  // the lowest that fits
  REQUIRE(is_zero(again, 32 * kPageSize));
  REQUIRE(munmap(memory, bytes) == 0);
  REQUIRE(munmap(memory, bytes) == 0);  // twice is no error, as in the kernel
  REQUIRE(!is_readable(memory));
  errno = 0;
  REQUIRE(munmap(memory + 1, kPageSize) == -1 && errno == EINVAL);
  unsigned char* whole = map_memory(bytes);
  REQUIRE(whole == memory && is_zero(whole, bytes));
  return 0;
}

// The window is 16 MiB here, and this takes all of it.
int run_unmap_across_the_end(const char*) {
  const size_t bytes = 16 * kMiB;
  unsigned char* far = map_memory(bytes);
  fill(far, bytes, 3);
  unsigned char* end = far + bytes;
  void* local = mmap(end, 4 * kPageSize, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  REQUIRE(local == end);
  REQUIRE(munmap(end - 4 * kPageSize, 6 * kPageSize) == 0);
  REQUIRE(!is_readable(end - kPageSize) && !is_readable(end));
  REQUIRE(!is_readable(end + kPageSize) && is_readable(end + 2 * kPageSize));
  REQUIRE(is_filled(far, bytes - 4 * kPageSize, 3));
  tell("far", far, bytes);
  return 0;
}

int run_dontneed(const char*) {
  const size_t bytes = 64 * kPageSize;
  unsigned char* memory = map_memory(bytes);
  for (const int advice : {MADV_DONTNEED, MADV_FREE}) {
    fill(memory, bytes, 20);
    REQUIRE(madvise(memory + kPageSize, 62 * kPageSize, advice) == 0);
    REQUIRE(is_zero(memory + kPageSize, 62 * kPageSize));
    REQUIRE(is_filled(memory, kPageSize, 20));
    REQUIRE(is_filled(memory + 63 * kPageSize, kPageSize, 20 + 63));
  }
  fill(memory, bytes, 30);
  REQUIRE(mlock(memory, bytes) == 0);
  REQUIRE(munmap(memory, bytes) == 0);
  REQUIRE(map_memory(bytes) == memory && is_zero(memory, bytes));
  return 0;
}

int run_advice(const char*) {
  const size_t bytes = 64 * kPageSize;
  unsigned char* memory = map_memory(bytes);
  fill(memory, bytes, 40);
  for (const int advice : {MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED, MADV_HUGEPAGE, MADV_DOFORK,
                           MADV_DONTFORK, MADV_NORMAL, MADV_SEQUENTIAL, MADV_RANDOM}) {
    REQUIRE(madvise(memory, bytes, advice) == 0);
  }
  REQUIRE(posix_madvise(memory, bytes, POSIX_MADV_DONTNEED) == 0);
  REQUIRE(posix_madvise(memory, bytes, POSIX_MADV_WILLNEED) == 0);
  REQUIRE(is_filled(memory, bytes, 40));
  unsigned char* small = map_memory(kPageSize);
  fill(small, kPageSize, 7);
  REQUIRE(posix_madvise(small, kPageSize, POSIX_MADV_DONTNEED) == 0 &&
          is_filled(small, kPageSize, 7));
  REQUIRE(madvise(small, kPageSize, MADV_DONTNEED) == 0 && is_zero(small, kPageSize));
  REQUIRE(posix_madvise(memory, bytes, 999) == EINVAL);
  return 0;
}

int run_remap(const char*) {
  unsigned char* memory = map_memory(kMiB);
  fill(memory, kMiB, 50);
  // In place: the window behind it is free.
  REQUIRE(mremap(memory, kMiB, 2 * kMiB, 0) == memory);
  REQUIRE(is_filled(memory, kMiB, 50) && is_zero(memory + kMiB, kMiB));
  REQUIRE(mremap(memory, 2 * kMiB, kMiB, 0) == memory);
  REQUIRE(!is_readable(memory + kMiB) && is_filled(memory, kMiB, 50));
  // Somebody behind it: only by moving.
  unsigned char* neighbour = map_memory(kMiB);
  REQUIRE(neighbour == memory + kMiB);
  errno = 0;
  REQUIRE(mremap(memory, kMiB, 4 * kMiB, 0) == MAP_FAILED && errno == ENOMEM);
  REQUIRE(mprotect(memory, kMiB, PROT_READ) == 0);
  unsigned char* moved =
      static_cast<unsigned char*>(mremap(memory, kMiB, 4 * kMiB, MREMAP_MAYMOVE));
  REQUIRE(moved != MAP_FAILED && moved != memory);
  REQUIRE(is_filled(moved, kMiB, 50) && is_zero(moved + kMiB, 3 * kMiB));
  REQUIRE(!is_readable(memory));
  int null = open("/dev/zero", O_RDONLY);
  REQUIRE(read(null, moved, 1) == -1 && errno == EFAULT);  // still read-only
  errno = 0;
  REQUIRE(mremap(neighbour, 2 * kMiB, 4 * kMiB, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
  tell("moved", moved, 4 * kMiB);
  return 0;
}

// The bytes are EndToEndMemoryCalls' concern; here it is what the kernel would refuse too.
int run_remap_refused(const char*) {
  unsigned char* memory = map_memory(kMiB);
  fill(memory, kMiB, 60);
  const auto is_refused = [&](size_t old_bytes, size_t bytes, int flags, void* to) {
    errno = 0;
    return mremap(memory, old_bytes, bytes, flags, to) == MAP_FAILED && errno == EINVAL;
  };
  unsigned char* other = map_memory(kMiB);
  REQUIRE(is_refused(kMiB, kMiB, MREMAP_FIXED, other));
  REQUIRE(is_refused(kMiB, kMiB, MREMAP_DONTUNMAP, nullptr));
  REQUIRE(is_refused(kMiB, 2 * kMiB, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr));
  REQUIRE(is_refused(kMiB, kMiB, MREMAP_MAYMOVE | MREMAP_FIXED, other + 1));
  REQUIRE(is_refused(kMiB, kMiB, MREMAP_MAYMOVE | MREMAP_FIXED, memory + kPageSize));
  REQUIRE(is_refused(0, kMiB, MREMAP_MAYMOVE, nullptr) && is_refused(kMiB, 0, 0, nullptr));
  REQUIRE(is_filled(memory, kMiB, 60) && is_zero(other, kMiB));
  return 0;
}

// The pager keeps 2 MiB at most.
int run_lock(const char*) {
  unsigned char* memory = map_memory(kMiB);
  REQUIRE(mlock(memory + 100, kMiB - 200) == 0);  // rounded outwards
  fill(memory, kMiB, 61);
  tell_and_wait("locked", memory, kMiB);
  unsigned char* large = map_memory(2 * kMiB);
  errno = 0;
  REQUIRE(mlock(large, 2 * kMiB) == -1 && errno == ENOMEM);
  REQUIRE(munlock(memory, kMiB / 2) == 0);
  tell_and_wait("half", memory, kMiB);
  REQUIRE(munmap(memory, kMiB) == 0);
  errno = 0;
  REQUIRE(mlock(memory, kMiB) == -1 && errno == ENOMEM);  // not mapped
  REQUIRE(mlockall(MCL_FUTURE) == 0);
  REQUIRE(map_memory(kMiB) == memory);
  errno = 0;
  REQUIRE(mmap(nullptr, 4 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
              MAP_FAILED &&
          errno == EAGAIN);
  tell_and_wait("future", memory, kMiB);
  REQUIRE(munlockall() == 0);
  tell_and_wait("none", memory, kMiB);
  return 0;
}

int run_fixed(const char* path) {
  constexpr int kFixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  unsigned char* memory = map_memory(kMiB);
  fill(memory, kMiB, 70);
  // Anonymous memory over it: zeros, still far.
  unsigned char* part = memory + 64 * kPageSize;
  REQUIRE(mmap(part, 64 * kPageSize, PROT_READ | PROT_WRITE, kFixed, -1, 0) == part);
  REQUIRE(is_zero(part, 64 * kPageSize));
  REQUIRE(is_filled(memory, 64 * kPageSize, 70));
  // A call that fails must not cost the contents.
  fill(part, 64 * kPageSize, 80);
  REQUIRE(mmap(part, kPageSize, PROT_READ, MAP_PRIVATE | MAP_FIXED, 999, 0) == MAP_FAILED);
  REQUIRE(is_filled(part, 64 * kPageSize, 80));
  // A file over it, then given back: zeros, and far again.
  const int file = open(path, O_RDONLY);
  REQUIRE(file >= 0);
  unsigned char expected[4];
  REQUIRE(pread(file, expected, sizeof(expected), 0) == sizeof(expected));
  REQUIRE(mmap(part, kPageSize, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, 0) == part);
  REQUIRE(memcmp(part, expected, sizeof(expected)) == 0);
  REQUIRE(is_filled(part + kPageSize, 63 * kPageSize, 81));
  REQUIRE(munmap(memory, kMiB) == 0);
  REQUIRE(!is_readable(part));
  REQUIRE(map_memory(kMiB) == memory);
  REQUIRE(is_zero(memory, kMiB));
  fill(memory, kMiB, 90);
  tell_and_wait("ready", part, kPageSize);  // the test evicts the page and looks for it
  REQUIRE(is_filled(memory, kMiB, 90));
  return 0;
}

int run_full_window(const char*) {
  unsigned char* first = map_memory(12 * kMiB);
  unsigned char* second = map_memory(12 * kMiB);
  unsigned char* third = map_memory(12 * kMiB);
  fill(second, 12 * kMiB, 1);
  fill(third, 12 * kMiB, 2);
  tell("first", first, 12 * kMiB);
  tell("second", second, 12 * kMiB);
  REQUIRE(munmap(second, 12 * kMiB) == 0);
  return 0;
}

int run_drop(const char*) {
  const size_t bytes = 256 * kPageSize;
  unsigned char* memory = map_memory(bytes);
  fill(memory, bytes, 100);
  tell_and_wait("ready", memory, bytes);
  REQUIRE(is_filled(memory, bytes, 200));  // the test has put other bytes there
  fill(memory, bytes, 300);
  REQUIRE(mlock(memory, 16 * kPageSize) == 0);
  tell_and_wait("locked", memory, bytes);
  REQUIRE(is_filled(memory, bytes, 300));
  return 0;
}

namespace {
sigjmp_buf after_signal;
void* signal_address = nullptr;
void on_bus_error(int, siginfo_t* information, void*) {
  signal_address = information->si_addr;
  siglongjmp(after_signal, 1);
}
}  // namespace

int run_poison(const char*) {
  unsigned char* memory = map_memory(kMiB);
  fill(memory, kMiB, 110);
  unsigned char* lost = memory + 8 * kPageSize;
  tell_and_wait("ready", lost, kPageSize);
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  REQUIRE(sigaction(SIGBUS, &action, nullptr) == 0);
  if (sigsetjmp(after_signal, 1) == 0) {
    const volatile unsigned char byte = lost[100];
    REQUIRE(byte == 255 && "a poisoned page was readable");
  }
  REQUIRE(signal_address == lost + 100);
  REQUIRE(is_filled(memory, 8 * kPageSize, 110));
  REQUIRE(is_filled(lost + kPageSize, kMiB - 9 * kPageSize, 119));
  // Given back and taken anew it is memory as any other.
  REQUIRE(munmap(memory, kMiB) == 0 && map_memory(kMiB) == memory && is_zero(memory, kMiB));
  return 0;
}

int run_pager_lost(const char*) {
  unsigned char* memory = map_memory(kMiB);
  fill(memory, kMiB, 120);
  tell_and_wait("ready", memory, kMiB);
  for (int attempt = 0; attempt < 2; ++attempt) {
    errno = 0;
    REQUIRE(munmap(memory, kMiB) == -1 && errno == EIO);
    REQUIRE(madvise(memory, kMiB, MADV_DONTNEED) == -1 && errno == EIO);
  }
  REQUIRE(fork() == -1 && errno == ENOMEM);
  REQUIRE(is_filled(memory, kMiB, 120));
  return 0;
}

namespace {

struct Block {
  unsigned char* memory;
  size_t bytes;
  uint32_t seed;
};

void churn(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Block> blocks;
  for (int step = 0; step < 400; ++step) {
    const uint32_t choice = random() % 8;
    if (blocks.empty() || (choice < 3 && blocks.size() < 12)) {
      const size_t bytes = (32 + random() % 160) * kPageSize;
      Block block{map_memory(bytes), bytes, static_cast<uint32_t>(random())};
      REQUIRE(is_zero(block.memory, block.bytes));
      fill(block.memory, block.bytes, block.seed);
      blocks.push_back(block);
      continue;
    }
    Block& block = blocks[random() % blocks.size()];
    REQUIRE(is_filled(block.memory, block.bytes, block.seed));
    if (choice < 5) {
      REQUIRE(munmap(block.memory, block.bytes) == 0);
      block = blocks.back();
      blocks.pop_back();
    } else if (choice == 5) {
      REQUIRE(madvise(block.memory, block.bytes, MADV_DONTNEED) == 0);
      REQUIRE(is_zero(block.memory, block.bytes));
      fill(block.memory, block.bytes, block.seed);
    } else if (choice == 6) {
      const size_t bytes = (32 + random() % 160) * kPageSize;
      void* moved = mremap(block.memory, block.bytes, bytes, MREMAP_MAYMOVE);
      REQUIRE(moved != MAP_FAILED);
      block.memory = static_cast<unsigned char*>(moved);
      REQUIRE(is_filled(block.memory, bytes < block.bytes ? bytes : block.bytes, block.seed));
      block.bytes = bytes;
      fill(block.memory, block.bytes, block.seed);
    } else {
      const size_t cut = kPageSize * (1 + random() % 8);
      REQUIRE(munmap(block.memory + block.bytes - cut, cut) == 0);
      block.bytes -= cut;
      REQUIRE(is_filled(block.memory, block.bytes, block.seed));
      if (block.bytes <= 16 * kPageSize) {
        REQUIRE(munmap(block.memory, block.bytes) == 0);
        block = blocks.back();
        blocks.pop_back();
      }
    }
  }
  for (const Block& block : blocks) {
    REQUIRE(is_filled(block.memory, block.bytes, block.seed));
    REQUIRE(munmap(block.memory, block.bytes) == 0);
  }
}

}  // namespace

int run_stress(const char* seed) {
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 6; ++i) {
    threads.emplace_back(churn, static_cast<uint32_t>(strtoul(seed, nullptr, 10)) + i);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return 0;
}

}  // namespace farpage::test
