// TcpChannel: the borrower's end of one connection, on plain non-blocking system calls: with one
// request in flight they are as fast as io_uring, and simpler.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "rdma/fixed_queue.h"
#include "rdma/tcp/frame.h"
#include "rdma/tcp/wire_pace.h"
#include "rdma/tcp/write_packer.h"
#include "rdma/transport.h"

struct msghdr;

namespace farpage::rdma::tcp {

// Threads: see Channel.
// Invariants:
//  1. in_flight_ holds accepted operations in wire order: the first sent_ are wholly sent, of the
//     next one sent_bytes_ bytes are. Replies answer its front.
//  2. in_flight_ and done_ together never exceed limits().operations_in_flight.
//  3. An operation is made ready when its turn to be sent comes, and from then on does not change.
//  4. Once broken, the socket is closed: a late reply cannot reach a returned buffer.
class TcpChannel final : public Channel {
 public:
  // `socket`: connected, after the handshake. `packer`: the node takes packed WRITEs; may be null.
  TcpChannel(Fd socket, std::string peer, const ChannelOptions& options, ChannelLimits limits,
             std::unique_ptr<WritePacker> packer);

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
    std::span<std::byte> behind_header;  // of a WRITE, as it is or packed
    bool is_packed = false;
    bool is_ready = false;  // after make_ready()
    size_t wire_bytes() const { return header.size() + behind_header.size(); }
  };

  // Sends accepted operations until the socket is full.
  void flush();
  void advance_sent(size_t bytes);
  // Makes the header, and packs the data of a WRITE while the wire is slow.
  void make_ready(InFlight& entry);
  void look_at_wire(std::span<const Operation> posted);
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
  // What is sent soon is packed, not all that is posted: so much of memory is used at once.
  const std::unique_ptr<WritePacker> packer_;
  WirePace pace_;

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
