// EventReaders: says when an event that has left the kernel's queue has reached the pager.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "pager/options.h"

namespace farpage::pager {

// Threads: begin() and end() by the fault worker `reader`; the rest by any. Cost: one exchange for
// each begin().
class EventReaders {
 public:
  // The worker reads events, and has handled all of them at end().
  void begin(uint32_t reader) { step(reader, std::memory_order_seq_cst); }
  void end(uint32_t reader) { step(reader, std::memory_order_release); }

  // Returns when every event that was read before the call has been handled. Workers go on reading
  // meanwhile. Never waits longer than one round of each worker.
  void wait_until_handled() const {
    for (const Reader& reader : readers_) {
      const uint64_t seen = reader.steps.load(std::memory_order_seq_cst);
      const bool reads = seen % 2 == 1;
      while (reads && reader.steps.load(std::memory_order_acquire) == seen) ::sched_yield();
    }
  }

 private:
  struct alignas(64) Reader {
    std::atomic<uint64_t> steps{0};  // odd between begin() and end(); one writer
  };
  void step(uint32_t reader, std::memory_order order) {
    std::atomic<uint64_t>& steps = readers_[reader].steps;
    steps.store(steps.load(std::memory_order_relaxed) + 1, order);
  }

  std::array<Reader, kMaxWorkers> readers_;
};

}  // namespace farpage::pager
