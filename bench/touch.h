// One timed touch of a page, and helpers of a touching thread.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace farpage::bench {

// From before a load (or a store of `value`) to after it, in nanoseconds. That includes the
// clock: `farpage bench ladder` shows its cost ("present page").
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

// Whether the page of this address is in memory (mincore(2)); does not fault.
bool is_present(const void* page);

// Pins the calling thread to the index-th CPU (modulo their number) that this process may use.
void pin_this_thread(uint32_t index);
// Undoes the pinning that the calling thread inherited from its creator: allows all of these CPUs.
void unpin_this_thread();
uint32_t usable_cpu_count();

}  // namespace farpage::bench
