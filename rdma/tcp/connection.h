// Connection: the protocol of the node's end of one TCP connection: bytes in, replies out.
// DataServer does the input and output.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "rdma/guesses.h"
#include "rdma/key_table.h"
#include "rdma/session_fences.h"
#include "rdma/tcp/file_operations.h"
#include "rdma/tcp/frame.h"

namespace farpage::rdma::tcp {

// Threads: written by one server thread, read by any.
struct DataCounters {
  std::atomic<uint64_t> reads{0};
  std::atomic<uint64_t> writes{0};
  std::atomic<uint64_t> bytes_read{0};
  std::atomic<uint64_t> bytes_written{0};
  std::atomic<uint64_t> bytes_saved{0};
  std::atomic<uint64_t> refused{0};
  std::atomic<uint64_t> malformed{0};
};

// Memory is bounded: one receive buffer and one batch of replies, and FileOperations' once a slab
// in a file was used. While a batch is being sent, nothing more is served, so a peer that does not
// read its replies stalls only itself. A slab in a file stalls its peers, and others of this
// thread, for as long as the disk takes.
//
// Threads: one server thread.
// Invariants:
//  1. Replies leave in the order of their requests.
//  2. Between calls, slabs are held (KeyTable::Use) only by READ replies that are not wholly sent.
//  3. Requests are served with pass_ open: once another connection, on any thread, has sent a Hello
//     with the same session, nothing of this one is applied, and its socket is shut down.
class Connection {
 public:
  static constexpr size_t kReceiveBytes = size_t{64} << 10;
  static constexpr size_t kMaxReplies = 64;  // in one batch

  Connection(Fd socket, KeyTable& keys, SessionFences& fences, DataCounters& counters);

  int socket() const { return socket_.get(); }

  // Where the next bytes go; empty when the buffer is full of requests that wait for the batch.
  std::span<std::byte> receive_space();
  void received(size_t bytes) { received_end_ += bytes; }

  // Serves received requests until the batch is full. False: close it, for close_reason().
  [[nodiscard]] bool serve();
  const std::string& close_reason() const { return close_reason_; }
  // Close after the replies are sent: the handshake was refused, or the peer guesses(). Then there
  // are replies.
  bool close_after_replies() const { return close_after_replies_; }

  // The unsent part of the batch; msg_iovlen is 0 when there is none.
  msghdr* replies();
  bool has_replies() const { return reply_count_ > 0; }
  // Whether the whole batch is sent now.
  bool sent(size_t bytes);
  // Releases the memory that unsent replies point to.
  void drop_replies();

  bool greeted() const { return greeted_; }
  // The peer has presented kMaxUnknownKeys never-issued keys.
  bool guesses() const { return guesses_.too_many(); }
  // Stops serving, and records in the session how the connection ended.
  void leave_session(SessionEnd end) { pass_.leave(end); }
  // The batch points into memory whose withdrawal waits for it.
  bool holds_withdrawn_memory() const;

 private:
  bool refuse(FrameFault fault);
  // What a disk cannot do, or has not done: the peer tries again, here or elsewhere. No refusal of
  // the slab, which would be lost to it. What was served before is answered.
  bool close_for(std::string reason);
  bool serve_hello();
  bool serve_requests();
  bool serve_request();
  bool begin_write(const Request& request);
  bool continue_write();
  // What was received of its data.
  bool take_piece();
  // The pages of which all bytes were received.
  bool take_packed_pages();
  bool unpack_into(std::span<std::byte> rest);
  void skip_piece();
  bool end_write();
  bool serve_read(const Request& request);
  // Records a key that was never issued.
  bool is_refused(const KeyTable::Use& use, const Request& request);
  void refuse_access(const Request& request);
  void add_reply(const Reply& reply, KeyTable::Use slab = {}, std::span<std::byte> data = {});
  // The first unread bytes are done with, which were so much of the data of the WRITE.
  void took(size_t bytes, size_t data_bytes);
  size_t unread_bytes() const { return received_end_ - received_begin_; }
  const std::byte* unread() const { return receive_buffer_.data() + received_begin_; }

  Fd socket_;
  KeyTable& keys_;
  SessionFences& fences_;
  DataCounters& counters_;
  SessionFences::Pass pass_;  // after socket_, which when_fenced shuts down
  bool greeted_ = false;
  bool takes_packed_ = false;  // Welcome has granted it
  Guesses guesses_;
  bool close_after_replies_ = false;
  std::string close_reason_;

  std::vector<std::byte> receive_buffer_;
  size_t received_begin_ = 0;
  size_t received_end_ = 0;

  // A WRITE whose data is still arriving. Each piece is checked and copied separately, so no memory
  // is held while a slow peer sends. A packed page that arrives in part stays in the receive
  // buffer. To a file it goes as a whole.
  struct Write {
    Request request;
    uint32_t taken_bytes = 0;  // of those behind the header
    uint32_t done_bytes = 0;   // of data_bytes
    size_t needed_bytes = 1;   // received, to go on
    bool active = false;
    bool refused = false;
    bool to_file = false;
  };
  Write write_;
  FileOperations files_;

  struct PendingReply {
    std::array<std::byte, kReplyBytes> header{};
    KeyTable::Use slab;
  };
  std::vector<PendingReply> replies_;
  size_t reply_count_ = 0;
  std::array<std::byte, kWelcomeBytes> welcome_{};
  std::vector<iovec> segments_;
  size_t segment_begin_ = 0;
  msghdr message_{};
};

}  // namespace farpage::rdma::tcp
