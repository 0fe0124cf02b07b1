#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "scenario.h"

namespace farpage::test {

unsigned char* map_memory(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  return static_cast<unsigned char*>(memory);
}

void fill(unsigned char* memory, size_t bytes, uint32_t seed) {
  for (size_t offset = 0; offset < bytes; offset += kPageSize, ++seed) {
    memcpy(memory + offset, &seed, sizeof(seed));
  }
}

bool is_filled(const unsigned char* memory, size_t bytes, uint32_t seed) {
  for (size_t offset = 0; offset < bytes; offset += kPageSize, ++seed) {
    if (memcmp(memory + offset, &seed, sizeof(seed)) != 0) {
      return false;
    }
  }
  return true;
}

bool is_zero(const unsigned char* memory, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    if (memory[i] != 0) {
      return false;
    }
  }
  return true;
}

bool is_readable(const void* memory) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const bool readable = write(ends[1], memory, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

void tell(const char* word, const void* memory, size_t bytes) {
  printf("%s %zu %zu\n", word, reinterpret_cast<size_t>(memory), bytes);
  fflush(stdout);
}

void tell_and_wait(const char* word, const void* memory, size_t bytes) {
  tell(word, memory, bytes);
  char line[64];
  REQUIRE(fgets(line, sizeof(line), stdin) != nullptr);
}

}  // namespace farpage::test
