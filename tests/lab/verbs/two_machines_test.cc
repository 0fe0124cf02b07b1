// Verbs between two machines: this one and the memory node at $LAB_PEER, port 7471. Runs in the
// lab.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "tests/lab/verbs/client.h"

namespace farpage::lab {
namespace {

using rdma::CompletionStatus;

TEST(TwoMachines, ReadAndWriteUntilTheNodeLosesItsPower) {
  auto node = NodeLink::connect(std::getenv("LAB_PEER"), 7471);
  ASSERT_TRUE(node) << node.error().message();
  auto lease = node->expose();
  ASSERT_TRUE(lease) << lease.error().message();
  Client client;
  client.verbs.retry_count = 1;
  const auto connected = client.connect(*node);
  ASSERT_TRUE(connected) << connected.error().message();

  ASSERT_EQ(client.run(client.read(*lease, 3, 0, 1)), CompletionStatus::kOk);
  EXPECT_TRUE(all_bytes_are(client.page(0), 0xAB));
  std::memset(client.page(1).data(), 0x5C, kPageBytes);
  ASSERT_EQ(client.run(client.write(*lease, 4, 1, 2)), CompletionStatus::kOk);
  EXPECT_EQ(node->byte_at(4 * kPageBytes + 4095), 0x5C);

  std::vector<rdma::Operation> reads;
  for (size_t i = 0; i < kBufferPages; ++i) reads.push_back(client.read(*lease, i, i, i));
  ASSERT_EQ(client.channel().post(reads), kBufferPages);
  for (const auto& done : client.collect(kBufferPages)) {
    EXPECT_EQ(done.status, CompletionStatus::kOk);
  }

  ASSERT_EQ(std::system("lab host kill B"), 0);
  EXPECT_EQ(client.run(client.read(*lease, 0, 0, 3)), CompletionStatus::kPeerGone);
  EXPECT_FALSE(client.channel().usable());
}

}  // namespace
}  // namespace farpage::lab
