#include "rdma/shm/copy_to_slab.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace farpage::rdma::shm {

#if defined(__SSE2__)

void copy_to_slab(std::byte* to, std::span<const std::byte> from) {
  constexpr size_t kLine = 64;
  const auto misplaced =
      (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from.data()) | from.size()) %
      kLine;
  if (misplaced != 0) {
    std::memcpy(to, from.data(), from.size());
    return;
  }
  const auto* source = reinterpret_cast<const __m128i*>(from.data());
  auto* target = reinterpret_cast<__m128i*>(to);
  for (const auto* end = source + from.size() / sizeof(__m128i); source != end;
       source += 4, target += 4) {
    const __m128i a = _mm_load_si128(source);
    const __m128i b = _mm_load_si128(source + 1);
    const __m128i c = _mm_load_si128(source + 2);
    const __m128i d = _mm_load_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();  // streaming stores are not ordered by the release that follows
}

#else

void copy_to_slab(std::byte* to, std::span<const std::byte> from) {
  std::memcpy(to, from.data(), from.size());
}

#endif

}  // namespace farpage::rdma::shm
