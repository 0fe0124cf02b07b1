// The module of deep_bind: it allocates for the program, and frees what the program has allocated.
#include <cstdlib>
#include <cstring>

extern "C" char* module_allocate(size_t bytes) {
  return static_cast<char*>(memset(malloc(bytes), 'm', bytes));
}

extern "C" void module_release(char* block) {
  free(block);
}
