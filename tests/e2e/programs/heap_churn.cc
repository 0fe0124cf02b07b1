// heap_churn BYTES STEPS: allocates about BYTES by every function of malloc's family, in two
// threads with so many steps each, and checks each byte. Prints the file whose malloc served it.
// `heap_churn pairs COUNT`: COUNT pairs of malloc and free, of sizes from 16 bytes to 64 KiB, among
// some hundred live blocks.
#include <dlfcn.h>
#include <malloc.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "tests/require.h"

namespace {

struct Block {
  unsigned char* begin = nullptr;
  size_t bytes = 0;
  unsigned char seed = 0;

  void fill() const {
    for (size_t i = 0; i < bytes; ++i) begin[i] = static_cast<unsigned char>(seed + i * 7 + 1);
  }
  bool is_filled(size_t first_bytes) const {
    for (size_t i = 0; i < first_bytes; ++i)
      if (begin[i] != static_cast<unsigned char>(seed + i * 7 + 1)) return false;
    return true;
  }
};

unsigned char* allocate(uint32_t way, size_t bytes) {
  void* memory = nullptr;
  switch (way % 5) {
    case 0:
      memory = malloc(bytes);
      break;
    case 1:
      memory = calloc(bytes, 1);
      for (size_t i = 0; i < bytes; ++i) REQUIRE(static_cast<unsigned char*>(memory)[i] == 0);
      break;
    case 2:
      memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
      REQUIRE(reinterpret_cast<uintptr_t>(memory) % 4096 == 0);
      break;
    case 3:
      REQUIRE(posix_memalign(&memory, 256, bytes) == 0);
      REQUIRE(reinterpret_cast<uintptr_t>(memory) % 256 == 0);
      break;
    default:
      memory = reallocarray(nullptr, bytes, 1);
      break;
  }
  REQUIRE(memory != nullptr && malloc_usable_size(memory) >= bytes);
  return static_cast<unsigned char*>(memory);
}

size_t some_size(std::mt19937& random) {
  constexpr size_t kSmall = 500;
  constexpr size_t kMiddle = 20'000;
  constexpr size_t kLarge = 2 << 20;
  const auto kind = static_cast<uint32_t>(random() % 100);
  return 1 + random() % (kind < 60 ? kSmall : kind < 95 ? kMiddle : kLarge);
}

// Every alignment with every size near it.
void aligned() {
  for (size_t alignment = 16; alignment <= 8192; alignment *= 2) {
    const auto check = [alignment](void* block, size_t bytes) {
      REQUIRE(block != nullptr && reinterpret_cast<uintptr_t>(block) % alignment == 0);
      memset(block, 1, bytes);
    };
    for (size_t bytes = 16; bytes <= 16384; bytes *= 2) {
      for (int round = 0; round < 5; ++round) {
        void* block = nullptr;
        REQUIRE(posix_memalign(&block, alignment, bytes) == 0);
        check(block, bytes);
        block = memalign(alignment, bytes);
        check(block, bytes);
        if (round % 2 == 0) free(block);
        if (bytes >= alignment) check(aligned_alloc(alignment, bytes), bytes);
        void* object = operator new (bytes, std::align_val_t{alignment});
        check(object, bytes);
        operator delete (object, std::align_val_t{alignment});
        check(operator new[](bytes, std::align_val_t{alignment}, std::nothrow), bytes);
      }
    }
  }
}

void churn(size_t most_bytes, uint32_t steps, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Block> blocks;
  size_t used = 0;
  const auto give_back = [&](size_t index) {
    Block& block = blocks[index];
    REQUIRE(block.is_filled(block.bytes));
    used -= block.bytes;
    free(block.begin);
    block = blocks.back();
    blocks.pop_back();
  };
  for (uint32_t step = 0; step < steps; ++step) {
    while (used > most_bytes) give_back(random() % blocks.size());
    if (random() % 8 == 0 && !blocks.empty()) {
      Block& block = blocks[random() % blocks.size()];
      const size_t bytes = some_size(random);
      auto* moved = static_cast<unsigned char*>(realloc(block.begin, bytes));
      REQUIRE(moved != nullptr);
      block.begin = moved;
      REQUIRE(block.is_filled(bytes < block.bytes ? bytes : block.bytes));
      used = used - block.bytes + bytes;
      block.bytes = bytes;
      block.fill();
      continue;
    }
    const size_t bytes = some_size(random);
    const auto way = static_cast<uint32_t>(random());
    blocks.push_back({allocate(way, bytes), bytes, static_cast<unsigned char>(way >> 8)});
    blocks.back().fill();
    used += bytes;
  }
  while (!blocks.empty()) give_back(blocks.size() - 1);
}

void pairs(uint32_t count) {
  std::mt19937 random(1);
  std::vector<void*> live(300, nullptr);
  for (uint32_t i = 0; i < count; ++i) {
    void*& place = live[random() % live.size()];
    free(place);
    place = malloc(16U << (random() % 13));
    REQUIRE(place != nullptr);
    *static_cast<unsigned char*>(place) = 1;
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 3 && strcmp(arguments[1], "pairs") == 0) {
    pairs(static_cast<uint32_t>(strtoul(arguments[2], nullptr, 10)));
    return 0;
  }
  REQUIRE(count == 3);
  aligned();
  const size_t bytes = strtoul(arguments[1], nullptr, 10);
  const auto steps = static_cast<uint32_t>(strtoul(arguments[2], nullptr, 10));
  std::thread other(churn, bytes / 2, steps, 11);
  churn(bytes / 2, steps, 12);
  other.join();
  Dl_info where{};
  void* (*function)(size_t) = malloc;
  REQUIRE(dladdr(reinterpret_cast<void*>(function), &where) != 0);
  printf("%s\n", where.dli_fname);
  return 0;
}
