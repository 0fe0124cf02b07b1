#include "rdma/tcp/connection.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "rdma/limits.h"

namespace farpage::rdma::tcp {
namespace {

constexpr const char* kNoWholePages = "the slab is in a file, of which only whole pages are served";

void add(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace

Connection::Connection(Fd socket, KeyTable& keys, SessionFences& fences, DataCounters& counters)
    : socket_(std::move(socket)),
      keys_(keys),
      fences_(fences),
      counters_(counters),
      receive_buffer_(kReceiveBytes),
      replies_(kMaxReplies) {
  segments_.reserve(2 * kMaxReplies);
}

std::span<std::byte> Connection::receive_space() {
  if (received_begin_ > 0) {
    std::memmove(receive_buffer_.data(), unread(), unread_bytes());
    received_end_ -= received_begin_;
    received_begin_ = 0;
  }
  return std::span(receive_buffer_).subspan(received_end_);
}

bool Connection::serve() {
  if (!greeted_) {
    if (unread_bytes() < kHelloBytes) return true;
    if (!serve_hello()) return false;
  }
  bool understood = true;
  if (pass_.use_if_open([&] { understood = serve_requests(); })) return understood;
  close_reason_ = "a newer connection of its session took over";
  return false;
}

bool Connection::serve_requests() {
  while (reply_count_ < kMaxReplies && !close_after_replies_ && !files_.is_full()) {
    if (write_.active) {
      if (unread_bytes() == 0) break;
      if (!continue_write()) return false;
    } else if (unread_bytes() < kRequestBytes) {
      break;
    } else if (!serve_request()) {
      return false;
    }
  }
  return true;
}

bool Connection::refuse(FrameFault fault) {
  add(counters_.malformed);
  close_reason_ = to_string(fault);
  return false;
}

bool Connection::close_for(std::string reason) {
  close_reason_ = std::move(reason);
  close_after_replies_ = has_replies();
  return close_after_replies_;
}

bool Connection::serve_hello() {
  const Decoded<Hello> hello =
      decode_hello(std::span<const std::byte, kHelloBytes>(unread(), kHelloBytes));
  if (!hello) return refuse(hello.error());
  received_begin_ += kHelloBytes;
  greeted_ = true;
  Welcome welcome;
  welcome.operation_bytes = kMaxOperationBytes;
  if (hello->version != kProtocolVersion) {
    welcome.status = WireStatus::kVersion;
    close_after_replies_ = true;
    close_reason_ = "the peer speaks protocol version " + std::to_string(hello->version);
  } else {
    // The socket's own server thread closes it when a receive returns 0.
    pass_ = fences_.enter(hello->session, 0,
                          [socket = socket_.get()] { ::shutdown(socket, SHUT_RDWR); });
  }
  welcome_ = encode(welcome);
  segments_.push_back({welcome_.data(), welcome_.size()});
  ++reply_count_;
  return true;
}

bool Connection::serve_request() {
  const Decoded<Request> request =
      decode_request(std::span<const std::byte, kRequestBytes>(unread(), kRequestBytes));
  if (!request) return refuse(request.error());
  received_begin_ += kRequestBytes;
  return request->kind == OperationKind::kRead ? serve_read(*request) : begin_write(*request);
}

bool Connection::serve_read(const Request& request) {
  KeyTable::Use slab =
      keys_.acquire(request.key, request.generation, request.address, request.data_bytes);
  if (is_refused(slab, request)) {
    refuse_access(request);
    return true;
  }
  std::span<std::byte> data = slab.bytes();
  if (slab.file() >= 0) {
    if (!FileOperations::can_serve(slab)) return close_for(kNoWholePages);
    Result<std::span<std::byte>> read = files_.read(slab);
    if (!read) return close_for(read.error().message());
    data = *read;
  }
  add(counters_.reads);
  add(counters_.bytes_read, request.data_bytes);
  add_reply({WireStatus::kOk, request.token, request.data_bytes}, std::move(slab), data);
  return true;
}

bool Connection::begin_write(const Request& request) {
  write_ = {request, 0, true, false, false};
  // Checks the whole range now; each piece is checked again when it arrives.
  const KeyTable::Use slab =
      keys_.acquire(request.key, request.generation, request.address, request.data_bytes);
  write_.refused = is_refused(slab, request);
  write_.to_file = !write_.refused && slab.file() >= 0;
  return !write_.to_file || FileOperations::can_serve(slab) || close_for(kNoWholePages);
}

bool Connection::is_refused(const KeyTable::Use& use, const Request& request) {
  if (use.key_is_unknown()) guesses_.add(request.key);
  return !use;
}

// Sends the refusal even if the connection then closes: a borrower of the node's previous run must
// learn that these slabs are lost.
void Connection::refuse_access(const Request& request) {
  add(counters_.refused);
  add_reply({WireStatus::kRemoteAccess, request.token, 0});
  if (!guesses()) return;
  close_after_replies_ = true;
  close_reason_ = "the peer used unknown keys";
}

bool Connection::continue_write() {
  const Request& request = write_.request;
  const size_t piece = std::min<size_t>(unread_bytes(), request.data_bytes - write_.done_bytes);
  if (!write_.refused && !take_piece(piece)) return false;
  received_begin_ += piece;
  write_.done_bytes += static_cast<uint32_t>(piece);
  return write_.done_bytes < request.data_bytes || end_write();
}

bool Connection::take_piece(size_t bytes) {
  if (write_.to_file) {
    const Status gathered = files_.gather(write_.done_bytes, {unread(), bytes});
    return gathered.has_value() || close_for(gathered.error().message());
  }
  const Request& request = write_.request;
  const RemoteAddress address{request.address.value + write_.done_bytes};
  const KeyTable::Use memory = keys_.acquire(request.key, request.generation, address, bytes);
  write_.refused = !memory;
  if (memory) std::memcpy(memory.bytes().data(), unread(), bytes);
  return true;
}

bool Connection::end_write() {
  const Request& request = write_.request;
  write_.active = false;
  if (write_.to_file) {
    const KeyTable::Use slab =
        keys_.acquire(request.key, request.generation, request.address, request.data_bytes);
    write_.refused = !slab;
    const Status written = slab ? files_.write(slab) : Status();
    if (!written) return close_for(written.error().message());
  }
  if (write_.refused) {
    refuse_access(request);
    return true;
  }
  add(counters_.writes);
  add(counters_.bytes_written, request.data_bytes);
  add_reply({WireStatus::kOk, request.token, 0});
  return true;
}

void Connection::add_reply(const Reply& reply, KeyTable::Use slab, std::span<std::byte> data) {
  FARPAGE_CHECK(reply_count_ < kMaxReplies, "a batch of %zu replies is full", kMaxReplies);
  PendingReply& pending = replies_[reply_count_++];
  pending.header = encode(reply);
  pending.slab = std::move(slab);
  segments_.push_back({pending.header.data(), pending.header.size()});
  if (!data.empty()) segments_.push_back({data.data(), data.size()});
}

msghdr* Connection::replies() {
  message_.msg_iov = segments_.data() + segment_begin_;
  message_.msg_iovlen = segments_.size() - segment_begin_;
  return &message_;
}

bool Connection::sent(size_t bytes) {
  while (segment_begin_ < segments_.size() && bytes >= segments_[segment_begin_].iov_len) {
    bytes -= segments_[segment_begin_].iov_len;
    ++segment_begin_;
  }
  if (segment_begin_ == segments_.size()) {
    drop_replies();
    return true;
  }
  iovec& partial = segments_[segment_begin_];
  partial.iov_base = static_cast<std::byte*>(partial.iov_base) + bytes;
  partial.iov_len -= bytes;
  return false;
}

void Connection::drop_replies() {
  for (size_t i = 0; i < reply_count_; ++i) replies_[i].slab.release();
  files_.forget_reads();
  reply_count_ = 0;
  segments_.clear();
  segment_begin_ = 0;
}

bool Connection::holds_withdrawn_memory() const {
  return std::any_of(replies_.begin(), replies_.begin() + static_cast<ptrdiff_t>(reply_count_),
                     [](const PendingReply& reply) { return reply.slab.withdrawn(); });
}

}  // namespace farpage::rdma::tcp
