// FileChannel: READs and WRITEs of a file.
#pragma once

#include <atomic>
#include <memory>

#include "rdma/file/file_io.h"
#include "rdma/fixed_queue.h"
#include "rdma/transport.h"

namespace farpage::rdma::file {

// Threads: see Channel.
// Invariants:
//  1. What was given up because its time is over goes on in the core: also after the end of the
//     channel, until the kernel has completed it.
//  2. In flight and done together never exceed limits().operations_in_flight.
class FileChannel final : public Channel {
 public:
  FileChannel(std::shared_ptr<FileCore> core, std::unique_ptr<FileIo> io,
              const ChannelOptions& options, ChannelLimits limits);
  ~FileChannel() override;

  ChannelLimits limits() const override { return limits_; }
  TransportKind kind() const override { return TransportKind::kFile; }
  size_t post(std::span<const Operation> operations) override;
  size_t poll(std::span<Completion> completions) override;
  size_t wait(std::span<Completion> completions, Nanoseconds timeout) override;
  bool usable() const override { return usable_.load(std::memory_order_acquire); }
  std::string why_broken() const override;

 private:
  // False: the operation cannot be accepted now.
  bool accept(const Operation& operation, Instant deadline);
  // Operations without a completion.
  uint32_t waiting() const { return usable() ? io_->in_flight() : 0; }
  void check_deadline();
  void break_with(CompletionStatus first, const char* reason);
  void block(Instant deadline);

  const std::shared_ptr<FileCore> core_;
  std::unique_ptr<FileIo> io_;  // while it is usable
  const ChannelOptions options_;
  const ChannelLimits limits_;
  Instant next_look_{0};  // no operation is late before
  FixedQueue<Completion> done_;
  std::atomic<bool> usable_{true};
  const char* broken_reason_ = "";
};

}  // namespace farpage::rdma::file
