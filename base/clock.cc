#include "base/clock.h"

namespace farpage {

Instant SteadyClock::now() const {
  return read();
}

Instant SteadyClock::read() {
  return std::chrono::duration_cast<Nanoseconds>(
      std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace farpage
