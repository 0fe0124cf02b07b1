#include "rdma/held_peers.h"

#include <gtest/gtest.h>

namespace farpage::rdma {
namespace {

TEST(HeldPeers, PeerIsHeldUntilItsTimeAndOthersAreNot) {
  HeldPeers held;
  held.hold("a", Seconds(10));
  EXPECT_EQ(held.hold_of("a", Seconds(4)), Seconds(6));
  EXPECT_EQ(held.hold_of("b", Seconds(4)), Seconds(0));
  held.hold("a", Seconds(12));
  EXPECT_EQ(held.hold_of("a", Seconds(4)), Seconds(8));
  EXPECT_EQ(held.hold_of("a", Seconds(12)), Seconds(0));
}

TEST(HeldPeers, TheOneThatIsFreeFirstIsForgottenWhenThereAreTooMany) {
  HeldPeers held;
  for (size_t i = 0; i < HeldPeers::kMaxPeers; ++i)
    held.hold(std::to_string(i), Seconds(100) + Seconds((i + 7) % HeldPeers::kMaxPeers));
  const std::string first = std::to_string(HeldPeers::kMaxPeers - 7);
  held.hold("0", Seconds(5000));  // already listed: no other peer is dropped
  EXPECT_GT(held.hold_of(first, Seconds(1)), Seconds(0));
  held.hold("new", Seconds(5000));
  EXPECT_EQ(held.hold_of(first, Seconds(1)), Seconds(0));
  EXPECT_EQ(held.hold_of("new", Seconds(1)), Seconds(4999));
  EXPECT_EQ(held.hold_of("1", Seconds(1)), Seconds(107));
}

}  // namespace
}  // namespace farpage::rdma
