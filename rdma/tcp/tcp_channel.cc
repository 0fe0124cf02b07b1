#include "rdma/tcp/tcp_channel.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "rdma/adaptive_wait.h"
#include "rdma/limits.h"
#include "rdma/tcp/socket.h"

namespace farpage::rdma::tcp {
namespace {

constexpr size_t kMaxSendSegments = 128;
constexpr size_t kStagingBytes = size_t{64} << 10;
// Packed bytes that are sent by one call. The wire has some to carry while more are packed.
constexpr size_t kPackedSendBytes = size_t{128} << 10;

}  // namespace

TcpChannel::TcpChannel(Fd socket, std::string peer, const ChannelOptions& options,
                       ChannelLimits limits, std::unique_ptr<WritePacker> packer)
    : peer_(std::move(peer)),
      options_(options),
      limits_(limits),
      socket_(std::move(socket)),
      in_flight_(limits.operations_in_flight),
      done_(limits.operations_in_flight),
      packer_(std::move(packer)),
      staging_(kStagingBytes) {}

size_t TcpChannel::post(std::span<const Operation> operations) {
  if (!usable()) return 0;
  const size_t room = limits_.operations_in_flight - in_flight_.size() - done_.size();
  const size_t accepted = std::min(room, operations.size());
  if (accepted == 0) return 0;
  const Instant deadline = deadline_after(SteadyClock::read(), options_.operation_timeout);
  for (const Operation& operation : operations.first(accepted)) {
    if (!local_side_is_valid(operation, options_.buffer, limits_.operation_bytes)) {
      done_.push_back({operation.token, CompletionStatus::kLocalError});
      continue;
    }
    InFlight entry;
    entry.operation = operation;
    entry.wire_token = next_wire_token_++;
    entry.deadline = deadline;
    in_flight_.push_back(entry);
  }
  if (packer_ && options_.pack_writes == PackWrites::kOnSlowWire)
    look_at_wire(operations.first(accepted));
  flush();
  return accepted;
}

void TcpChannel::look_at_wire(std::span<const Operation> posted) {
  size_t bytes = 0;
  for (const Operation& operation : posted)
    bytes += operation.kind == OperationKind::kWrite ? operation.local.size() : 0;
  if (bytes == 0) return;
  pace_.posted(bytes, !has_unacknowledged(socket_.get()));
  if (!pace_.wants_look()) return;
  if (const std::optional<WireUse> use = wire_use(socket_.get())) pace_.look(*use);
}

void TcpChannel::make_ready(InFlight& entry) {
  const Operation& operation = entry.operation;
  Request request{operation.kind,       entry.wire_token,
                  operation.remote,     operation.key,
                  operation.generation, static_cast<uint32_t>(operation.local.size())};
  if (operation.kind == OperationKind::kWrite) {
    entry.behind_header = operation.local;
    if (packer_ && (pace_.is_slow() || options_.pack_writes == PackWrites::kAlways)) {
      const std::span<std::byte> packed = packer_->pack(operation.local);
      entry.is_packed = !packed.empty();
      if (entry.is_packed) entry.behind_header = packed;
      request.packed_bytes = static_cast<uint32_t>(packed.size());
    }
  }
  entry.header = encode(request);
  entry.is_ready = true;
}

void TcpChannel::flush() {
  while (usable() && sent_ < in_flight_.size()) {
    std::array<iovec, kMaxSendSegments> segments;
    size_t used = 0;
    size_t packed = 0;
    size_t skip = sent_bytes_;
    const auto add = [&](std::byte* data, size_t bytes) {
      const size_t skipped = std::min(skip, bytes);
      skip -= skipped;
      if (bytes > skipped) segments[used++] = {data + skipped, bytes - skipped};
    };
    for (size_t i = sent_;
         i < in_flight_.size() && used + 2 <= segments.size() && packed < kPackedSendBytes; ++i) {
      InFlight& entry = in_flight_[i];
      if (!entry.is_ready) make_ready(entry);
      packed += entry.is_packed ? entry.behind_header.size() : 0;
      add(entry.header.data(), entry.header.size());
      add(entry.behind_header.data(), entry.behind_header.size());
    }
    msghdr message{};
    message.msg_iov = segments.data();
    message.msg_iovlen = used;
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      advance_sent(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      return break_with(CompletionStatus::kPeerGone, "send failed", errno);
    }
  }
}

void TcpChannel::advance_sent(size_t bytes) {
  sent_bytes_ += bytes;
  // An operation that is not ready has no length yet.
  for (; sent_ < in_flight_.size() && in_flight_[sent_].is_ready; ++sent_) {
    const InFlight& entry = in_flight_[sent_];
    if (sent_bytes_ < entry.wire_bytes()) break;
    sent_bytes_ -= entry.wire_bytes();
    if (entry.is_packed) packer_->release(entry.behind_header);
  }
}

size_t TcpChannel::poll(std::span<Completion> completions) {
  if (!in_flight_.empty()) {
    flush();
    if (done_.size() < completions.size()) receive();
    if (done_.empty()) check_deadline();
  }
  size_t stored = 0;
  for (; stored < completions.size() && !done_.empty(); ++stored) {
    completions[stored] = done_.front();
    done_.pop_front();
  }
  return stored;
}

size_t TcpChannel::wait(std::span<Completion> completions, Nanoseconds timeout) {
  if (completions.empty()) return 0;
  return adaptive_wait(
      options_.poll_mode, options_.spin_time, timeout, [&] { return poll(completions); },
      [&] { return idle(); }, [&](Instant deadline) { block(deadline); });
}

void TcpChannel::block(Instant deadline) {
  const Instant now = SteadyClock::read();
  const Nanoseconds left = std::max(
      Nanoseconds(0), std::min({deadline, in_flight_.front().deadline, now + Seconds(60)}) - now);
  const timespec timeout{left / Seconds(1), (left % Seconds(1)).count()};
  const auto events = static_cast<short>(POLLIN | (sent_ < in_flight_.size() ? POLLOUT : 0));
  pollfd entry{socket_.get(), events, 0};
  (void)::ppoll(&entry, 1, &timeout, nullptr);  // the caller checks again, whatever the result
}

void TcpChannel::receive() {
  while (usable() && !in_flight_.empty() && receive_once()) {
  }
}

bool TcpChannel::receive_once() {
  // Receives the data of the next replies directly into the buffers of their READs, assuming that
  // none is refused. The rest is staged.
  std::array<iovec, 2 * kScatteredReplies + 1> segments;
  size_t used = 0;
  size_t bytes = 0;
  const auto add = [&](std::byte* data, size_t size) {
    segments[used++] = {data, size};
    bytes += size;
  };
  const size_t replies = std::min(in_flight_.size(), kScatteredReplies);
  for (size_t i = 0; i < replies; ++i) {
    const Operation& operation = in_flight_[i].operation;
    const bool read = operation.kind == OperationKind::kRead;
    const size_t had_header = i == 0 ? reply_header_bytes_ : 0;
    const size_t had_data = i == 0 ? data_bytes_ : 0;
    add(scattered_headers_[i].data(), kReplyBytes - had_header);
    add(operation.local.data() + had_data, read ? operation.local.size() - had_data : 0);
  }
  add(staging_.data(), staging_.size());
  msghdr message{};
  message.msg_iov = segments.data();
  message.msg_iovlen = used;
  const ssize_t received = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (received < 0) {
    if (errno == EINTR) return true;
    if (errno != EAGAIN) break_with(CompletionStatus::kPeerGone, "receive failed", errno);
    return false;
  }
  if (received == 0) {
    break_with(CompletionStatus::kPeerGone, "the node closed the connection", 0);
    return false;
  }
  take_scattered(std::span(segments).first(used), static_cast<size_t>(received));
  return static_cast<size_t>(received) == bytes;
}

void TcpChannel::take_scattered(std::span<const iovec> segments, size_t bytes) {
  const auto piece_of = [&bytes](const iovec& segment) {
    const size_t taken = std::min(bytes, segment.iov_len);
    bytes -= taken;
    return std::span(static_cast<const std::byte*>(segment.iov_base), taken);
  };
  // Headers and buffers alternate.
  for (size_t i = 0; i < segments.size() && bytes > 0 && usable(); ++i) {
    const bool buffer = i % 2 == 1;
    const std::span<const std::byte> piece = piece_of(segments[i]);
    if (piece.empty()) continue;
    if (!buffer) {
      feed(piece);
    } else if (receiving_data_ && piece.data() == next_data().data()) {
      took_data(piece.size());
    } else {
      // An earlier reply had no data (a refusal), so the rest is misplaced, in buffers of
      // operations still in flight. Copy it first: feed() may write to these buffers.
      std::vector<std::byte> rest(piece.begin(), piece.end());
      for (const iovec& segment : segments.subspan(i + 1)) {
        const std::span<const std::byte> more = piece_of(segment);
        rest.insert(rest.end(), more.begin(), more.end());
      }
      feed(rest);
    }
  }
}

void TcpChannel::feed(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (in_flight_.empty())
      return break_with(CompletionStatus::kPeerGone, "a reply to no request arrived", 0);
    if (receiving_data_) {
      const std::span<std::byte> place = next_data();
      const size_t taken = std::min(bytes.size(), place.size());
      std::memcpy(place.data(), bytes.data(), taken);
      bytes = bytes.subspan(taken);
      took_data(taken);
    } else {
      const size_t taken = std::min(bytes.size(), kReplyBytes - reply_header_bytes_);
      std::memcpy(reply_header_.data() + reply_header_bytes_, bytes.data(), taken);
      reply_header_bytes_ += taken;
      bytes = bytes.subspan(taken);
      if (reply_header_bytes_ == kReplyBytes) take_reply_header();
      if (!usable()) return;
    }
  }
}

std::span<std::byte> TcpChannel::next_data() {
  return in_flight_.front().operation.local.subspan(data_bytes_);
}

void TcpChannel::took_data(size_t bytes) {
  data_bytes_ += bytes;
  if (next_data().empty()) finish_front(CompletionStatus::kOk);
}

void TcpChannel::take_reply_header() {
  const Decoded<Reply> reply = decode_reply(reply_header_);
  const InFlight& front = in_flight_.front();
  if (!reply) return break_with(CompletionStatus::kPeerGone, to_string(reply.error()).data(), 0);
  if (sent_ == 0 || reply->token != front.wire_token)
    return break_with(CompletionStatus::kPeerGone, "a reply out of order arrived", 0);
  if (reply->status == WireStatus::kRemoteAccess)
    return finish_front(CompletionStatus::kRemoteAccess);
  const bool read = front.operation.kind == OperationKind::kRead;
  if (reply->data_bytes != (read ? front.operation.local.size() : 0))
    return break_with(CompletionStatus::kPeerGone, "a reply of the wrong length arrived", 0);
  if (!read) return finish_front(CompletionStatus::kOk);
  receiving_data_ = true;
}

void TcpChannel::finish_front(CompletionStatus status) {
  done_.push_back({in_flight_.front().operation.token, status});
  in_flight_.pop_front();
  --sent_;
  reply_header_bytes_ = 0;
  data_bytes_ = 0;
  receiving_data_ = false;
}

void TcpChannel::check_deadline() {
  if (!usable() || in_flight_.empty()) return;
  if (SteadyClock::read() < in_flight_.front().deadline) return;
  break_with(CompletionStatus::kTimedOut, "no answer within operation_timeout", 0);
}

void TcpChannel::break_with(CompletionStatus status, const char* reason, int sys_errno) {
  broken_reason_ = reason;
  broken_errno_ = sys_errno;
  usable_.store(false, std::memory_order_release);  // pairs with the acquire in usable()
  socket_.reset();
  for (size_t i = 0; !in_flight_.empty(); ++i) {
    const bool tried = i < sent_ || (i == sent_ && sent_bytes_ > 0);
    done_.push_back(
        {in_flight_.front().operation.token, tried ? status : CompletionStatus::kFlushed});
    in_flight_.pop_front();
  }
  sent_ = 0;
  sent_bytes_ = 0;
}

std::string TcpChannel::why_broken() const {
  if (usable()) return {};
  if (broken_errno_ == 0) return fmt::format("tcp {}: {}", peer_, broken_reason_);
  return fail_errno(fmt::format("tcp {}: {}", peer_, broken_reason_), broken_errno_)
      .value()
      .message();
}

}  // namespace farpage::rdma::tcp
