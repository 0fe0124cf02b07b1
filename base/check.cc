#include "base/check.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace farpage {

void check_failed(const char* file, int line, const char* condition, const char* format, ...) {
  std::fprintf(stderr, "farpage: bug at %s:%d: %s does not hold: ", file, line, condition);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::abort();
}

}  // namespace farpage
