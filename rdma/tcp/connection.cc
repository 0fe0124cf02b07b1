#include "rdma/tcp/connection.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "rdma/limits.h"
#include "rdma/tcp/packed_pages.h"

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
      if (unread_bytes() < write_.needed_bytes) break;
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
    welcome.packs_writes = takes_packed_ = hello->packs_writes;
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
  if (request->packed_bytes != 0 && !takes_packed_) return refuse(FrameFault::kUnexpectedKind);
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
  write_ = Write{.request = request, .active = true};
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
  if (write_.refused) {
    skip_piece();
  } else if (request.packed_bytes != 0 ? !take_packed_pages() : !take_piece()) {
    return false;
  }
  return write_.taken_bytes < request.bytes_behind() || end_write();
}

void Connection::took(size_t bytes, size_t data_bytes) {
  received_begin_ += bytes;
  write_.taken_bytes += static_cast<uint32_t>(bytes);
  write_.done_bytes += static_cast<uint32_t>(data_bytes);
}

void Connection::skip_piece() {
  write_.needed_bytes = 1;
  took(std::min<size_t>(unread_bytes(), write_.request.bytes_behind() - write_.taken_bytes), 0);
}

bool Connection::take_piece() {
  const Request& request = write_.request;
  const size_t bytes = std::min<size_t>(unread_bytes(), request.data_bytes - write_.done_bytes);
  if (write_.to_file) {
    const Result<std::span<std::byte>> gathered = files_.gathered();
    if (!gathered) return close_for(gathered.error().message());
    std::memcpy(gathered->data() + write_.done_bytes, unread(), bytes);
  } else {
    const RemoteAddress address{request.address.value + write_.done_bytes};
    const KeyTable::Use memory = keys_.acquire(request.key, request.generation, address, bytes);
    write_.refused = !memory;
    if (memory) std::memcpy(memory.bytes().data(), unread(), bytes);
  }
  took(bytes, bytes);
  return true;
}

bool Connection::take_packed_pages() {
  const Request& request = write_.request;
  const uint32_t rest = request.data_bytes - write_.done_bytes;
  if (write_.to_file) {
    const Result<std::span<std::byte>> gathered = files_.gathered();
    if (!gathered) return close_for(gathered.error().message());
    return unpack_into(gathered->subspan(write_.done_bytes, rest));
  }
  const RemoteAddress address{request.address.value + write_.done_bytes};
  const KeyTable::Use memory = keys_.acquire(request.key, request.generation, address, rest);
  write_.refused = !memory;
  return write_.refused || unpack_into(memory.bytes());
}

bool Connection::unpack_into(std::span<std::byte> rest) {
  const Request& request = write_.request;
  while (write_.taken_bytes < request.packed_bytes) {
    const size_t left = request.packed_bytes - write_.taken_bytes;
    if (rest.empty() || left < kMinPackedPageBytes) return refuse(FrameFault::kPackedPages);
    write_.needed_bytes = kPackedLengthBytes;
    if (unread_bytes() < write_.needed_bytes) return true;
    const size_t length = packed_length({unread(), kPackedLengthBytes});
    write_.needed_bytes = kPackedLengthBytes + length;
    if (length == 0 || length > kPageBytes || write_.needed_bytes > left)
      return refuse(FrameFault::kPackedPages);
    if (unread_bytes() < write_.needed_bytes) return true;
    if (!unpack_page({unread(), write_.needed_bytes}, rest.first(kPageBytes)))
      return refuse(FrameFault::kPackedPages);
    rest = rest.subspan(kPageBytes);
    took(write_.needed_bytes, kPageBytes);
  }
  return rest.empty() || refuse(FrameFault::kPackedPages);
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
  if (request.bytes_behind() < request.data_bytes)
    add(counters_.bytes_saved, request.data_bytes - request.bytes_behind());
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
