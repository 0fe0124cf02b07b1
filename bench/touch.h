// One timed touch of a page, and the small things a touching thread needs.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace farpage::bench {

// From before a load (or a store of `value`) to after it, in nanoseconds. The clock itself is part
// of it: `farpage bench ladder` shows how much that is ("present page").
inline uint64_t timed_load(const volatile uint64_t* word) {
  const Instant before = SteadyClock::read();
  const uint64_t value = *word;
  asm volatile("" ::"r"(value) : "memory");
  return static_cast<uint64_t>((SteadyClock::read() - before).count());
}

inline uint64_t timed_store(volatile uint64_t* word, uint64_t value) {
  const Instant before = SteadyClock::read();
  *word = value;
  asm volatile("" ::: "memory");
  return static_cast<uint64_t>((SteadyClock::read() - before).count());
}

// Whether the page of this address is in memory (mincore(2)). Reading it to find out would be a
// fault.
bool is_present(const void* page);

// Pins the calling thread to the index-th CPU (modulo their number) that this process may use.
void pin_this_thread(uint32_t index);
// A thread inherits the CPU affinity of its creator: lets it run on all of these CPUs again.
void unpin_this_thread();
uint32_t usable_cpu_count();

}  // namespace farpage::bench
