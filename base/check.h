// FARPAGE_CHECK: aborts on a bug, in release builds too. Not for input or system-call errors.
#pragma once

namespace farpage {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const char* format, ...) __attribute__((format(printf, 4, 5)));
}  // namespace farpage

// FARPAGE_CHECK(condition, "printf format with the values", ...)
#define FARPAGE_CHECK(condition, ...)                                       \
  do {                                                                      \
    if (__builtin_expect(!(condition), 0))                                  \
      ::farpage::check_failed(__FILE__, __LINE__, #condition, __VA_ARGS__); \
  } while (false)
