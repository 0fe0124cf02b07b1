// Opens a module with RTLD_DEEPBIND, by a name that only this program's RUNPATH resolves. Each side
// frees blocks of the other.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/require.h"

namespace {

using Allocate = char*(size_t);
using Release = void(char*);

void exchange_blocks(void* module) {
  REQUIRE(module != nullptr && "not found by RUNPATH");
  auto* allocate = reinterpret_cast<Allocate*>(dlsym(module, "module_allocate"));
  auto* release = reinterpret_cast<Release*>(dlsym(module, "module_release"));
  REQUIRE(allocate != nullptr && release != nullptr);
  for (size_t bytes = 8; bytes <= (4U << 20); bytes *= 2) {
    char* block = allocate(bytes);
    block = static_cast<char*>(realloc(block, 2 * bytes));
    REQUIRE(block[0] == 'm' && block[bytes - 1] == 'm');
    free(block);
    block = static_cast<char*>(malloc(bytes));
    memset(block, 'p', bytes);
    release(block);
  }
  REQUIRE(dlclose(module) == 0);
}

}  // namespace

int main() {
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
  constexpr char kModule[] = "farpage_test_module.so";
  exchange_blocks(dlopen(kModule, kMode));
  exchange_blocks(dlmopen(LM_ID_BASE, kModule, kMode));
  REQUIRE(dlopen("farpage_no_such_module.so", kMode) == nullptr && dlerror() != nullptr);
  puts("blocks exchanged");
  return 0;
}
