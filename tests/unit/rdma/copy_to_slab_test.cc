#include "rdma/shm/copy_to_slab.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace farpage::rdma::shm {
namespace {

// Any length at any offset within a cache line, and not a byte beyond.
TEST(CopyToSlab, CopiesWhatItIsGivenAndNothingElse) {
  constexpr size_t kRoom = size_t{4} * 4096;
  alignas(64) static std::array<std::byte, kRoom> from;
  alignas(64) static std::array<std::byte, kRoom> to;
  std::mt19937_64 random(5);
  for (std::byte& byte : from) byte = static_cast<std::byte>(random() % 255 + 1);
  for (int i = 0; i < 2000; ++i) {
    const size_t step = i % 2 == 0 ? 64 : 1;  // whole lines, and others
    const size_t bytes = random() % (kRoom / 2 / step) * step;
    const size_t source = random() % (kRoom / 2 / step) * step;
    const size_t target = random() % (kRoom / 2 / step) * step;
    to.fill(std::byte{0});
    copy_to_slab(to.data() + target, std::span(from).subspan(source, bytes));
    for (size_t at = 0; at < kRoom; ++at) {
      const bool inside = at >= target && at < target + bytes;
      ASSERT_EQ(to[at], inside ? from[source + at - target] : std::byte{0})
          << bytes << " bytes, from " << source << " to " << target << ", at " << at;
    }
  }
}

}  // namespace
}  // namespace farpage::rdma::shm
