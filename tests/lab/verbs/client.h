// Client: a buffer, and a channel to the memory node of these tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/mapping.h"
#include "rdma/verbs/verbs.h"
#include "tests/lab/verbs/node_link.h"

namespace farpage::lab {

inline constexpr size_t kBufferPages = 64;
// Far above what the device needs: a test that waits this long has found a hang.
inline constexpr auto kPatience = Seconds(20);

class Client {
 public:
  Client() {
    auto buffer = Mapping::anonymous(kBufferPages * kPageBytes, true);
    EXPECT_TRUE(buffer) << buffer.error().message();
    buffer_ = std::move(*buffer);
    options.buffer = buffer_.bytes();
  }

  Status connect(NodeLink& node) {
    channel_.reset();
    auto transport = rdma::make_verbs_transport(verbs);
    if (!transport) return tl::unexpected(transport.error());
    transport_ = std::move(*transport);
    rdma::TransportAddress address;
    address.kind = rdma::TransportKind::kVerbs;
    auto made = transport_->connect(address, options, [&](const rdma::QueuePairEndpoint& ours) {
      own_endpoint = ours;
      auto theirs = node.accept(ours);
      if (theirs) node_endpoint = *theirs;
      return theirs;
    });
    if (!made) return tl::unexpected(made.error());
    channel_ = std::move(*made);
    return {};
  }
  void disconnect() { channel_.reset(); }

  rdma::Channel& channel() { return *channel_; }
  std::span<std::byte> page(size_t index) {
    return buffer_.bytes().subspan(index * kPageBytes, kPageBytes);
  }

  rdma::Operation read(const Lease& lease, size_t page_in_lease, size_t page_in_buffer,
                       uint64_t token) {
    return {.kind = rdma::OperationKind::kRead,
            .local = page(page_in_buffer),
            .remote = {lease.address.value + page_in_lease * kPageBytes},
            .key = lease.key,
            .generation = Generation{1},
            .token = token};
  }
  rdma::Operation write(const Lease& lease, size_t page_in_lease, size_t page_in_buffer,
                        uint64_t token) {
    auto operation = read(lease, page_in_lease, page_in_buffer, token);
    operation.kind = rdma::OperationKind::kWrite;
    return operation;
  }

  // Waits for `count` completions.
  std::vector<rdma::Completion> collect(size_t count) {
    std::vector<rdma::Completion> all;
    const Instant give_up = SteadyClock::read() + kPatience;
    while (all.size() < count && SteadyClock::read() < give_up) {
      std::array<rdma::Completion, 7> some;  // an odd number on purpose
      const size_t got = channel_->wait(some, Milliseconds(200));
      all.insert(all.end(), some.begin(), some.begin() + static_cast<ptrdiff_t>(got));
    }
    EXPECT_EQ(all.size(), count);
    return all;
  }

  // Posts one operation and returns how it ended.
  rdma::CompletionStatus run(const rdma::Operation& operation) {
    EXPECT_EQ(channel_->post({&operation, 1}), 1U);
    const auto done = collect(1);
    if (done.empty()) return rdma::CompletionStatus::kTimedOut;
    EXPECT_EQ(done[0].token, operation.token);
    return done[0].status;
  }

  rdma::ChannelOptions options;
  rdma::VerbsOptions verbs;
  rdma::QueuePairEndpoint own_endpoint;
  rdma::QueuePairEndpoint node_endpoint;

 private:
  Mapping buffer_;
  std::unique_ptr<rdma::Transport> transport_;
  std::unique_ptr<rdma::Channel> channel_;
};

inline bool all_bytes_are(std::span<const std::byte> bytes, int value) {
  return std::ranges::all_of(bytes, [&](std::byte b) { return std::to_integer<int>(b) == value; });
}

}  // namespace farpage::lab
