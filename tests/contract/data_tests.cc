// The contract: which data READ and WRITE transfer, and when.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "tests/contract/contract_suite.h"

namespace farpage::rdma::contract {
namespace {

constexpr size_t kLargeSlabBytes = size_t{4} << 20;

TEST_P(TransportContract, ReadGivesTheBytesAtThatOffset) {
  const Slab& slab = lend(kLargeSlabBytes);
  const auto channel = connect();
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{4096}, size_t{4097}, size_t{65536},
                             size_t{channel->limits().operation_bytes}}) {
    if (bytes > kBufferBytes || bytes > kLargeSlabBytes) continue;
    for (const uint64_t offset : {uint64_t{0}, uint64_t{4096}, uint64_t{kLargeSlabBytes - bytes}}) {
      if (offset + bytes > kLargeSlabBytes) continue;
      ASSERT_EQ(run(*channel, read(slab, offset, local(0, bytes))), CompletionStatus::kOk);
      ASSERT_TRUE(is_original(local(0, bytes), offset)) << bytes << " bytes";
    }
  }
}

TEST_P(TransportContract, WriteReachesThatOffsetAndNothingElse) {
  const Slab& slab = lend(kLargeSlabBytes);
  const auto channel = connect();
  const std::span<std::byte> data = local(0, 10'000);
  std::fill(data.begin(), data.end(), std::byte{0xAB});
  ASSERT_EQ(run(*channel, write(slab, 12'345, data)), CompletionStatus::kOk);

  const std::span<std::byte> back = local(65536, 40'000);
  ASSERT_EQ(run(*channel, read(slab, 0, back)), CompletionStatus::kOk);
  EXPECT_TRUE(is_original(back.first(12'345), 0));
  EXPECT_EQ(std::memcmp(back.data() + 12'345, data.data(), data.size()), 0);
  EXPECT_TRUE(is_original(back.subspan(22'345), 22'345));

  host_->withdraw(slab.key);
  const std::span<const std::byte> memory = slab.memory.bytes();
  EXPECT_TRUE(is_original(memory.first(12'345), 0));
  EXPECT_EQ(std::memcmp(memory.data() + 12'345, data.data(), data.size()), 0);
  EXPECT_TRUE(is_original(memory.subspan(22'345), 22'345));
}

// Wires that compress have nothing to do with some of these pages.
TEST_P(TransportContract, PagesOfAnyContentArriveAsTheyAre) {
  const Slab& slab = lend(kSlabBytes);
  const auto channel = connect();
  const size_t most = std::min<size_t>(kSlabBytes, channel->limits().operation_bytes);
  std::mt19937_64 random(11);
  using Fill = std::function<void(std::span<std::byte>, size_t)>;
  const std::array<Fill, 4> contents = {
      [](std::span<std::byte> page, size_t) { std::memset(page.data(), 0, page.size()); },
      [](std::span<std::byte> page, size_t number) {
        for (size_t i = 0; i < page.size(); ++i)
          page[i] = static_cast<std::byte>(i / 60 * 5 + number);
      },
      [&](std::span<std::byte> page, size_t) {
        for (std::byte& byte : page) byte = static_cast<std::byte>(random());
      },
      [&](std::span<std::byte> page, size_t number) { contents[number % 3](page, number); }};
  for (const size_t bytes : {kPageBytes, 3 * kPageBytes, most / kPageBytes * kPageBytes}) {
    for (const auto& fill : contents) {
      const uint64_t offset = bytes + 1000 < kSlabBytes ? 1000 : 0;
      const std::span<std::byte> data = local(0, bytes);
      for (size_t at = 0; at < bytes; at += kPageBytes)
        fill(data.subspan(at, kPageBytes), at / kPageBytes);
      ASSERT_EQ(run(*channel, write(slab, offset, data)), CompletionStatus::kOk);
      const std::span<std::byte> back = local(kSlabBytes, bytes);
      ASSERT_EQ(run(*channel, read(slab, offset, back)), CompletionStatus::kOk);
      EXPECT_EQ(std::memcmp(back.data(), data.data(), bytes), 0) << bytes << " bytes";
    }
  }
}

TEST_P(TransportContract, Defect2ConcurrentReadsEachHaveTheirOwnBytes) {
  constexpr size_t kReads = 32;
  const Slab& slab = lend(kLargeSlabBytes);
  const auto channel = connect();
  std::vector<uint64_t> page_of(kReads);
  for (size_t i = 0; i < kReads; ++i) page_of[i] = (i * 7 + 3) % 1000;
  std::memset(buffer_.data(), 0, kReads * kPageBytes);
  std::vector<Operation> operations;
  for (size_t i = 0; i < kReads; ++i)
    operations.push_back(
        read(slab, page_of[i] * kPageBytes, local(i * kPageBytes, kPageBytes), 100 + i));

  size_t posted = 0;
  size_t completed = 0;
  while (completed < kReads) {
    posted += channel->post(std::span(operations).subspan(posted));
    std::array<Completion, 4> completions;
    const size_t stored = channel->wait(completions, Seconds(5));
    ASSERT_GT(stored, 0U);
    for (const Completion& completion : std::span(completions).first(stored)) {
      const size_t i = completion.token - 100;
      ASSERT_LT(i, kReads);
      ASSERT_EQ(completion.status, CompletionStatus::kOk);
      // Checked at once, while others are in flight.
      ASSERT_TRUE(is_original(local(i * kPageBytes, kPageBytes), page_of[i] * kPageBytes));
    }
    completed += stored;
  }
  EXPECT_EQ(posted, kReads);
}

// Operations in flight never overlap: each slot has its own part of the slab and of the buffer.
TEST_P(TransportContract, MixedOperationsInFlightCompleteExactlyOnce) {
  constexpr size_t kSlots = 64;
  constexpr size_t kZoneBytes = size_t{64} << 10;
  const uint64_t seed = ::testing::UnitTest::GetInstance()->random_seed() + 4711U;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const Slab& slab = lend(kSlots * kZoneBytes);
  std::vector<std::byte> model(kSlots * kZoneBytes);
  fill_original(model, 0);
  const auto channel = connect();

  struct Slot {
    Operation operation;
    uint64_t remote_offset = 0;
    bool busy = false;
  };
  std::vector<Slot> slots(kSlots);
  const int total = harness_->long_test_operations();
  const size_t largest = std::min<size_t>(kZoneBytes, channel->limits().operation_bytes);
  const auto prepare = [&](size_t i, uint64_t token) {
    // Mostly whole pages, sometimes any length.
    const size_t bytes = random() % 4 != 0 ? kPageBytes : 1 + random() % largest;
    const uint64_t offset = i * kZoneBytes + random() % (kZoneBytes - bytes + 1);
    const std::span<std::byte> data = local(i * kZoneBytes, bytes);
    const bool writes = random() % 2 == 0;
    if (writes) std::memset(data.data(), static_cast<int>(random() % 256), bytes);
    const Operation operation =
        writes ? write(slab, offset, data, token) : read(slab, offset, data, token);
    slots[i] = {operation, offset, true};
    return operation;
  };

  int started = 0;
  int finished = 0;
  uint64_t round = 0;
  std::vector<Operation> batch;  // not accepted yet; each already holds its slot
  while (finished < total) {
    ++round;
    for (size_t i = 0; i < kSlots && started < total; ++i) {
      if (slots[i].busy) continue;
      batch.push_back(prepare(i, round * kSlots + i));
      ++started;
    }
    const size_t accepted = channel->post(batch);
    batch.erase(batch.begin(), batch.begin() + static_cast<ptrdiff_t>(accepted));
    std::array<Completion, 16> completions;
    const size_t stored = channel->wait(completions, Seconds(10));
    ASSERT_GT(stored, 0U) << finished << " of " << total << " done; " << channel->why_broken();
    for (const Completion& completion : std::span(completions).first(stored)) {
      Slot& slot = slots[completion.token % kSlots];
      ASSERT_TRUE(slot.busy && slot.operation.token == completion.token) << "completed twice";
      ASSERT_EQ(completion.status, CompletionStatus::kOk);
      slot.busy = false;
      ++finished;
      std::byte* expected = model.data() + slot.remote_offset;
      const std::span<std::byte> data = slot.operation.local;
      if (slot.operation.kind == OperationKind::kWrite) {
        std::memcpy(expected, data.data(), data.size());
      } else {
        ASSERT_EQ(std::memcmp(expected, data.data(), data.size()), 0);
      }
    }
  }
  host_->withdraw(slab.key);
  EXPECT_EQ(std::memcmp(slab.memory.data(), model.data(), model.size()), 0);
}

TEST_P(TransportContract, ManyChannelsFromManyThreadsServeEachItsOwn) {
  constexpr size_t kThreads = 4;
  constexpr size_t kChannels = 3;
  constexpr size_t kPages = 16;
  const Slab& slab = lend(kThreads * kChannels * kPages * kPageBytes);
  const int rounds = std::max(1, harness_->long_test_operations() / 400);
  std::atomic<int> failures{0};
  const auto work = [&](size_t thread) {
    std::vector<std::unique_ptr<Channel>> channels;
    for (size_t c = 0; c < kChannels; ++c) channels.push_back(connect());
    for (int round = 0; round < rounds; ++round) {
      for (size_t c = 0; c < kChannels; ++c) {
        const size_t zone = (thread * kChannels + c) * kPages * kPageBytes;
        std::vector<Operation> reads;
        for (size_t p = 0; p < kPages; ++p) {
          const size_t at = zone + p * kPageBytes;
          reads.push_back(read(slab, at, local(at, kPageBytes), p));
        }
        std::memset(buffer_.data() + zone, 0, kPages * kPageBytes);
        if (channels[c] == nullptr || channels[c]->post(reads) != kPages) {
          ++failures;
          return;
        }
        for (const auto& [token, status] : drain(*channels[c], kPages))
          failures += status == CompletionStatus::kOk ? 0 : 1;
        failures += is_original(local(zone, kPages * kPageBytes), zone) ? 0 : 1;
      }
    }
  };
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
}

TEST_P(TransportContract, HostCountsWhatItServed) {
  if (!harness_->counts_operations()) GTEST_SKIP() << "this host cannot see operations";
  const Slab& slab = lend(kLargeSlabBytes);
  const auto channel = connect();
  ASSERT_EQ(run(*channel, read(slab, 0, local(0, 4096))), CompletionStatus::kOk);
  ASSERT_EQ(run(*channel, read(slab, 0, local(0, 100))), CompletionStatus::kOk);
  ASSERT_EQ(run(*channel, write(slab, 0, local(0, 300))), CompletionStatus::kOk);
  Operation wrong = read(slab, 0, local(0, 4096));
  wrong.key.value ^= 0x5a5a5a5a;
  ASSERT_EQ(run(*channel, wrong), CompletionStatus::kRemoteAccess);
  const HostCounters counters = host_->counters();
  EXPECT_EQ(counters.reads, 2U);
  EXPECT_EQ(counters.bytes_read, 4196U);
  EXPECT_EQ(counters.writes, 1U);
  EXPECT_EQ(counters.bytes_written, 300U);
  EXPECT_EQ(counters.refused, 1U);
  EXPECT_EQ(counters.peers, 1U);
}

}  // namespace
}  // namespace farpage::rdma::contract
