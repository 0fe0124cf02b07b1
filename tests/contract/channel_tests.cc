// The contract: connecting, waiting, limits, and the death of the host.
#include <array>
#include <string>

#include "tests/contract/contract_suite.h"

namespace farpage::rdma::contract {
namespace {

TEST_P(TransportContract, ChannelAndAddressAreOfTheTransportsKind) {
  const auto channel = connect();
  EXPECT_EQ(channel->kind(), transport_->kind());
  EXPECT_EQ(host_->address().kind, transport_->kind());
  EXPECT_TRUE(channel->usable());
  EXPECT_EQ(channel->why_broken(), "");
  const ChannelLimits limits = channel->limits();
  EXPECT_GE(limits.operations_in_flight, 1U);
  EXPECT_GE(limits.reads_in_flight, 1U);
  EXPECT_GE(limits.operation_bytes, kPageBytes);
}

TEST_P(TransportContract, BufferThatIsNotPageAlignedIsRefused) {
  for (const std::span<std::byte> buffer : {local(1, kPageBytes), local(0, 0)}) {
    ChannelOptions wrong = options();
    wrong.buffer = buffer;
    const auto channel =
        transport_->connect(host_->address(), wrong, harness_->exchange_with(*host_));
    ASSERT_FALSE(channel.has_value());
    EXPECT_EQ(channel.error().code, ErrorCode::kInvalid);
    EXPECT_NE(channel.error().context.find("buffer"), std::string::npos);
  }
}

TEST_P(TransportContract, WaitWithNothingInFlightReturnsAtOnce) {
  const auto channel = connect();
  std::array<Completion, 4> completions;
  EXPECT_EQ(channel->wait(completions, std::chrono::hours(24)), 0U);
  EXPECT_EQ(channel->poll(completions), 0U);
}

TEST_P(TransportContract, EveryPollModeFindsTheCompletion) {
  const Slab& slab = lend(kSlabBytes);
  for (const PollMode mode : {PollMode::kAdaptive, PollMode::kBusy, PollMode::kEvent}) {
    ChannelOptions with_mode = options();
    with_mode.poll_mode = mode;
    const auto channel = connect(with_mode);
    for (int i = 0; i < 20; ++i)
      ASSERT_EQ(run(*channel, read(slab, 0, local(0, kPageBytes))), CompletionStatus::kOk)
          << to_string(mode);
  }
}

TEST_P(TransportContract, FullChannelAcceptsAPrefix) {
  const Slab& slab = lend(kSlabBytes);
  ChannelOptions narrow = options();
  narrow.operations_in_flight = 4;
  const auto channel = connect(narrow);
  const size_t limit = channel->limits().operations_in_flight;
  ASSERT_LE(limit * kPageBytes, kSlabBytes - 5 * kPageBytes);
  std::vector<Operation> operations;
  for (size_t i = 0; i < limit + 5; ++i)
    operations.push_back(read(slab, i * kPageBytes, local(i * kPageBytes, kPageBytes), i));
  ASSERT_EQ(channel->post(operations), limit);
  EXPECT_EQ(channel->post(std::span(operations).subspan(limit)), 0U);
  const auto first = drain(*channel, limit);
  for (size_t i = 0; i < limit; ++i) EXPECT_EQ(first.at(i), CompletionStatus::kOk);
  ASSERT_EQ(channel->post(std::span(operations).subspan(limit)), std::min<size_t>(5, limit));
  drain(*channel, std::min<size_t>(5, limit));
}

TEST_P(TransportContract, Defect1ConnectToADeadHostFails) {
  const TransportAddress address = host_->address();
  harness_->kill_host(std::move(host_));
  const auto channel = transport_->connect(address, options(), [](const QueuePairEndpoint&) {
    return Result<QueuePairEndpoint>(fail(ErrorCode::kUnavailable, "the node is dead"));
  });
  ASSERT_FALSE(channel.has_value());
  EXPECT_FALSE(channel.error().context.empty());
}

TEST_P(TransportContract, Defect1DeathOfTheHostFailsAllThatIsInFlight) {
  constexpr size_t kOperations = 32;
  const Slab& slab = lend(kSlabBytes);
  const auto channel = connect();
  ASSERT_EQ(run(*channel, read(slab, 0, local(0, kPageBytes))), CompletionStatus::kOk);
  std::vector<Operation> operations;
  for (size_t i = 0; i < kOperations; ++i)
    operations.push_back(read(slab, i * kPageBytes, local(i * kPageBytes, kPageBytes), i));
  const size_t posted = channel->post(operations);
  harness_->kill_host(std::move(host_));
  for (const auto& [i, status] : drain(*channel, posted)) {
    // Completed before the host died, so the data has arrived.
    if (status != CompletionStatus::kOk) continue;
    EXPECT_TRUE(is_original(local(i * kPageBytes, kPageBytes), i * kPageBytes));
  }
  // The channel may need one more operation, or some time, to detect it.
  const Instant give_up = SteadyClock::read() + Seconds(20);
  while (channel->usable() && SteadyClock::read() < give_up)
    (void)run(*channel, read(slab, 0, local(0, kPageBytes)));
  ASSERT_FALSE(channel->usable());
  EXPECT_NE(channel->why_broken(), "");
  EXPECT_EQ(channel->post(operations), 0U);
  std::array<Completion, 4> completions;
  EXPECT_EQ(channel->wait(completions, std::chrono::hours(24)), 0U);
}

TEST_P(TransportContract, RestartedHostServesNewChannelsAndRefusesOldKeys) {
  const Slab& before = lend(kSlabBytes);
  auto channel = connect();
  const Operation stale = read(before, 0, local(0, kPageBytes));
  ASSERT_EQ(run(*channel, stale), CompletionStatus::kOk);
  harness_->kill_host(std::move(host_));
  start_host();
  const Slab& after = lend(kSlabBytes);
  channel = connect();
  ASSERT_NE(channel, nullptr);
  EXPECT_EQ(run(*channel, read(after, 0, local(0, kPageBytes))), CompletionStatus::kOk);
  EXPECT_EQ(run(*channel, stale), CompletionStatus::kRemoteAccess);
}

}  // namespace
}  // namespace farpage::rdma::contract
