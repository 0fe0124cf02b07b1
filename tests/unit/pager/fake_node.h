// FakeNode: a memory node and the channels to it. Operations wait until the test answers them, in
// the order and with the status it likes, or never; or they are all answered at once.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/mapping.h"
#include "call_log.h"
#include "rdma/transport.h"

namespace farpage::pager {

// Has room for a whole window: remote address = page number << kPageShift, whatever the lease.
//
// Threads: any. It outlives its channels.
class FakeNode {
 public:
  FakeNode(std::string name, uint64_t pages, CallLog& log);

  const std::string& name() const { return name_; }
  // The first bytes of the page as it is stored here.
  uint64_t word(uint64_t page) const;
  void set_word(uint64_t page, uint64_t word);

  // Operations that are posted from now on end like this in the next poll(). nullopt: each waits
  // for answer().
  void answer_all(std::optional<rdma::CompletionStatus> status);
  size_t waiting() const;
  // Answers the operation that has waited longest, or the one that is `place` behind it.
  void answer(rdma::CompletionStatus status = rdma::CompletionStatus::kOk, size_t place = 0);
  // All channels break: what is in flight ends with `first`, then kFlushed.
  void break_channels(rdma::CompletionStatus first = rdma::CompletionStatus::kPeerGone);
  // A broken channel accepts nothing; a full one accepts no more than that in flight.
  std::unique_ptr<rdma::Channel> connect(rdma::ChannelLimits limits = kUsualLimits);
  // Calls of post() that accepted something.
  size_t posts() const { return posts_.load(); }

  static constexpr rdma::ChannelLimits kUsualLimits{
      .operations_in_flight = 64, .reads_in_flight = 64, .operation_bytes = 1U << 20};

 private:
  class FakeChannel;
  struct Waiting {
    rdma::Operation operation;
    FakeChannel* channel = nullptr;
  };

  // With mutex_ held:
  void complete(const Waiting& waiting, rdma::CompletionStatus status);

  const std::string name_;
  CallLog& log_;
  std::atomic<size_t> posts_{0};
  mutable std::mutex mutex_;
  // Guarded by mutex_, as is what channels keep:
  Mapping memory_;
  std::vector<Waiting> waiting_;
  std::vector<FakeChannel*> channels_;
  std::optional<rdma::CompletionStatus> answer_;
};

}  // namespace farpage::pager
