// What the kernel's scheduler shows about threads, without an allocation.
#pragma once

#include <cstdint>
#include <optional>

#include "base/fd.h"

namespace farpage {

// Threads: one at a time. Keeps the files open; a look is one read(2), 1 to 3 us.
class RunningThreads {
 public:
  // The CPU that a thread of any process runs on, or has last run on. Empty: it has ended, or the
  // kernel does not show it. The id is that of our own PID namespace.
  std::optional<int> cpu_of(uint32_t thread);
  // How many threads of this machine run or are ready to run, the caller included. 0: unknown.
  uint32_t count();

 private:
  uint32_t thread_ = 0;  // whose file is open
  Fd stat_;
  Fd load_;
};

}  // namespace farpage
