// For programs that run in far memory, where a test framework would add its own allocations.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>

// Unless `condition` holds, reports the source line and ends the program at once with status 1.
#define REQUIRE(condition)                                                                      \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
      _Exit(1);                                                                                 \
    }                                                                                           \
  } while (false)
