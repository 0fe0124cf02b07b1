// The contract: a new channel of a session fences the previous one.
#include <algorithm>

#include "base/host.h"
#include "tests/contract/contract_suite.h"

namespace farpage::rdma::contract {
namespace {

constexpr size_t kBytes = size_t{256} << 10;
constexpr std::byte kOlder{0xAA};
constexpr std::byte kNewer{0xBB};

ChannelOptions of_session(ChannelOptions options, uint64_t session) {
  options.session = session;
  return options;
}

TEST_P(TransportContract, NewChannelOfASessionFencesTheWritesOfTheFormerOne) {
  const Slab& slab = lend(kBytes);
  const ChannelOptions session = of_session(options(), random_u32() | 1);
  const std::span<std::byte> older = local(0, kBytes);
  const std::span<std::byte> newer = local(kBytes, kBytes);
  const std::span<std::byte> seen = local(2 * kBytes, kBytes);
  std::fill(older.begin(), older.end(), kOlder);
  std::fill(newer.begin(), newer.end(), kNewer);

  const auto former = connect(session);
  ASSERT_NE(former, nullptr);
  // Far more than any socket buffers: some are still here, some in flight, and one is partly
  // received.
  std::vector<Operation> writes;
  for (uint64_t i = 0; i < session.operations_in_flight; ++i)
    writes.push_back(write(slab, 0, older, i));
  const size_t posted = former->post(writes);
  ASSERT_GT(posted, 0U);

  const auto latter = connect(session);
  ASSERT_NE(latter, nullptr);
  ASSERT_EQ(run(*latter, write(slab, 0, newer)), CompletionStatus::kOk);
  drain(*former, posted);
  EXPECT_NE(run(*former, write(slab, 0, older)), CompletionStatus::kOk);
  EXPECT_FALSE(former->usable());
  EXPECT_NE(former->why_broken(), "");

  ASSERT_EQ(run(*latter, read(slab, 0, seen)), CompletionStatus::kOk);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), kNewer), static_cast<ptrdiff_t>(kBytes));
  EXPECT_TRUE(latter->usable());
}

TEST_P(TransportContract, ChannelsOfOtherSessionsAndOfNoneAreNotFenced) {
  const Slab& slab = lend(kPageBytes);
  const uint64_t session = random_u32() | 1;
  std::vector<std::unique_ptr<Channel>> channels;
  for (const uint64_t number : {session, session + 2, uint64_t{0}, uint64_t{0}})
    channels.push_back(connect(of_session(options(), number)));
  const auto again = connect(of_session(options(), session));
  const Operation operation = read(slab, 0, local(0, kPageBytes));
  EXPECT_EQ(run(*again, operation), CompletionStatus::kOk);
  EXPECT_NE(run(*channels[0], operation), CompletionStatus::kOk);
  for (size_t i = 1; i < channels.size(); ++i)
    EXPECT_EQ(run(*channels[i], operation), CompletionStatus::kOk) << i;
}

TEST_P(TransportContract, SessionWhoseChannelIsGoneConnectsAnew) {
  const Slab& slab = lend(kPageBytes);
  const ChannelOptions session = of_session(options(), random_u32() | 1);
  for (int i = 0; i < 5; ++i) {
    const auto channel = connect(session);
    ASSERT_NE(channel, nullptr);
    EXPECT_EQ(run(*channel, read(slab, 0, local(0, kPageBytes))), CompletionStatus::kOk);
  }
}

}  // namespace
}  // namespace farpage::rdma::contract
