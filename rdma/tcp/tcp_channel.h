// TcpChannel: the borrower's end of one connection, on plain non-blocking system calls: with one
// request in flight they are as fast as io_uring, and simpler.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <vector>

#include "base/fd.h"
#include "rdma/fixed_queue.h"
#include "rdma/tcp/frame.h"
#include "rdma/transport.h"

struct msghdr;

namespace farpage::rdma::tcp {

// Threads: see Channel.
// Invariants:
//  1. in_flight_ holds accepted operations in wire order: the first sent_ are wholly sent, of the
//     next one sent_bytes_ bytes are. Replies answer its front.
//  2. in_flight_ and done_ together never exceed limits().operations_in_flight.
//  3. Once broken, the socket is closed: a late reply cannot reach a returned buffer.
class TcpChannel final : public Channel {
 public:
  // `socket`: connected, after the handshake.
  TcpChannel(Fd socket, std::string peer, const ChannelOptions& options, ChannelLimits limits);

  ChannelLimits limits() const override { return limits_; }
  TransportKind kind() const override { return TransportKind::kTcp; }
  size_t post(std::span<const Operation> operations) override;
  size_t poll(std::span<Completion> completions) override;
  size_t wait(std::span<Completion> completions, Nanoseconds timeout) override;
  bool usable() const override { return usable_.load(std::memory_order_acquire); }
  std::string why_broken() const override;

 private:
  static constexpr size_t kScatteredReplies = 16;

  struct InFlight {
    Operation operation;
    uint64_t wire_token = 0;
    Instant deadline{0};
    std::array<std::byte, kRequestBytes> header{};
    size_t wire_bytes() const {
      const bool write = operation.kind == OperationKind::kWrite;
      return header.size() + (write ? operation.local.size() : 0);
    }
  };

  // Sends accepted operations until the socket is full.
  void flush();
  void advance_sent(size_t bytes);
  // Receives until the socket is empty.
  void receive();
  // One recvmsg; whether the socket may hold more.
  bool receive_once();
  // Handles the `bytes` bytes that receive_once() received into its segments.
  void take_scattered(std::span<const iovec> segments, size_t bytes);
  // Handles the next received bytes, which are not yet in their place.
  void feed(std::span<const std::byte> bytes);
  void take_reply_header();
  // The place of the front's next data; while receiving_data_.
  std::span<std::byte> next_data();
  void took_data(size_t bytes);
  void finish_front(CompletionStatus status);
  void check_deadline();
  void break_with(CompletionStatus status, const char* reason, int sys_errno);
  void block(Instant deadline);
  bool idle() const { return in_flight_.empty() && done_.empty(); }

  // Constant after construction.
  const std::string peer_;
  const ChannelOptions options_;
  const ChannelLimits limits_;

  Fd socket_;
  FixedQueue<InFlight> in_flight_;
  FixedQueue<Completion> done_;
  size_t sent_ = 0;
  size_t sent_bytes_ = 0;
  uint64_t next_wire_token_ = 1;

  // The reply being received: its header, then its data into the front's buffer.
  std::array<std::byte, kReplyBytes> reply_header_{};
  size_t reply_header_bytes_ = 0;
  size_t data_bytes_ = 0;  // of the front's buffer received so far
  bool receiving_data_ = false;
  // Of one recvmsg: reply headers, and the bytes after kScatteredReplies replies.
  std::array<std::array<std::byte, kReplyBytes>, kScatteredReplies> scattered_headers_{};
  std::vector<std::byte> staging_;

  std::atomic<bool> usable_{true};
  const char* broken_reason_ = "";
  int broken_errno_ = 0;
};

}  // namespace farpage::rdma::tcp
