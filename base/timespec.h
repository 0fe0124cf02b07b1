// Durations as system calls take them.
#pragma once

#include <ctime>

#include "base/clock.h"

namespace farpage {

inline timespec timespec_of(Nanoseconds duration) {
  const auto seconds = std::chrono::duration_cast<Seconds>(duration);
  return {.tv_sec = seconds.count(), .tv_nsec = (duration - seconds).count()};
}

}  // namespace farpage
