// For programs that run in far memory, where a test framework would have memory of its own.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>

// Ends the program at once, with status 1 and the place, when something is not as it should be.
#define REQUIRE(condition)                                                                      \
  do {                                                                                          \
    if (!(condition)) {                                                                         \
      fprintf(stderr, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
      _Exit(1);                                                                                 \
    }                                                                                           \
  } while (false)
