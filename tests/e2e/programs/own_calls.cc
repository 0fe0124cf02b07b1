// own_calls libc|own BYTES: maps BYTES of private memory through libc, or by its own system call
// instruction as Go's runtime does, and touches each page.
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cstdlib>
#include <cstring>

#include "tests/require.h"

namespace {

void* map_by_instruction(size_t bytes) {
  long result = SYS_mmap;
  register long flags asm("r10") = MAP_PRIVATE | MAP_ANONYMOUS;
  register long fd asm("r8") = -1;
  register long offset asm("r9") = 0;
  asm volatile("syscall"
               : "+a"(result)
               : "D"(0), "S"(bytes), "d"(PROT_READ | PROT_WRITE), "r"(flags), "r"(fd), "r"(offset)
               : "rcx", "r11", "memory");
  REQUIRE(result > 0);
  return reinterpret_cast<void*>(result);
}

}  // namespace

int main(int count, char** arguments) {
  REQUIRE(count == 3);
  const size_t bytes = strtoul(arguments[2], nullptr, 10);
  void* memory = strcmp(arguments[1], "own") == 0 ? map_by_instruction(bytes)
                                                  : mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  for (size_t offset = 0; offset < bytes; offset += 4096) static_cast<char*>(memory)[offset] = 1;
  return 0;
}
