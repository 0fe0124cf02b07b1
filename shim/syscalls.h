// System calls without libc's wrappers: they never go through the interposed functions, never touch
// errno (the agent thread shares its creator's thread-local storage, see agent.h), and are no
// cancellation points. A failure is the negative errno, as the kernel returns it.
#pragma once

#include <stdint.h>
#include <sys/syscall.h>

#include <type_traits>

namespace farpage::shim {

// The unit of the kernel here; as in base/strong.h.
inline constexpr uint64_t kPageBytes = 4096;

// Threads: any; safe in signal handlers.
inline long system_call_words(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  register long x5 asm("x5") = f;
  asm volatile("svc 0"
               : "+r"(x0)
               : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
               : "memory");
  return x0;
#else
#error "the shim knows the system calls of x86-64 and arm64"
#endif
}

// One argument as the kernel takes it in a register.
template <typename T>
long system_call_word(T value) {
  if constexpr (std::is_pointer_v<T>) {
    return static_cast<long>(reinterpret_cast<intptr_t>(value));
  } else if constexpr (std::is_null_pointer_v<T>) {
    return 0;
  } else {
    return static_cast<long>(value);
  }
}

// Pointers and integers in the kernel's order. Returns the result, or the negative errno.
template <typename... Words>
long system_call(long number, Words... words) {
  static_assert(sizeof...(words) <= 6);
  const long all[7] = {system_call_word(words)..., 0};
  return system_call_words(number, all[0], all[1], all[2], all[3], all[4], all[5]);
}

// mmap and mremap return an address or one of the last 4095 values.
inline bool is_error(long result) {
  return result < 0 && result >= -4095;
}

inline uint64_t round_up_to_page(uint64_t bytes) {
  return (bytes + kPageBytes - 1) & ~(kPageBytes - 1);
}

// A range of addresses, [begin, end).
struct Span {
  uint64_t begin = 0;
  uint64_t end = 0;

  // Also where the end lies before the begin, as overlap() may return it.
  bool empty() const { return begin >= end; }
  uint64_t bytes() const { return empty() ? 0 : end - begin; }
  bool contains(const Span& other) const { return begin <= other.begin && other.end <= end; }
};

// All addresses of a program.
inline constexpr Span kEverything{0, uint64_t{1} << 63};

// What is in both; empty() if nothing is.
inline Span overlap(const Span& a, const Span& b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

}  // namespace farpage::shim
