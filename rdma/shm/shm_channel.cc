#include "rdma/shm/shm_channel.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "rdma/adaptive_wait.h"
#include "rdma/limits.h"
#include "rdma/shm/copy_to_slab.h"
#include "rdma/shm/seqpacket.h"

namespace farpage::rdma::shm {
namespace {

// Detecting a dead host takes a system call on the socket.
constexpr Nanoseconds kLookInterval = std::chrono::microseconds(200);

// Only this side writes these counters.
void add(std::atomic<uint64_t>& counter, uint64_t by) {
  counter.store(counter.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
}

}  // namespace

ShmChannel::ShmChannel(Connection connection, const ChannelOptions& options, ChannelLimits limits,
                       std::shared_ptr<ProcessState> process)
    : connection_(std::move(connection)),
      page_(reinterpret_cast<PeerPage*>(connection_.page.data())),
      options_(options),
      limits_(limits),
      process_(std::move(process)),
      pass_(process_->fences.enter(options.session, connection_.host_number)),
      waiting_(limits.operations_in_flight),
      done_(limits.operations_in_flight) {}

size_t ShmChannel::post(std::span<const Operation> operations) {
  if (!usable()) return 0;
  const Instant now = SteadyClock::read();
  if (now - last_look_ >= kLookInterval) {
    last_look_ = now;
    look();
    if (!usable()) return 0;
  }
  const size_t room = limits_.operations_in_flight - waiting_.size() - done_.size();
  const size_t accepted = std::min(room, operations.size());
  for (const Operation& operation : operations.first(accepted)) {
    if (!local_side_is_valid(operation, options_.buffer, limits_.operation_bytes)) {
      done_.push_back({operation.token, CompletionStatus::kLocalError});
    } else if (const auto status = run(operation)) {
      done_.push_back({operation.token, *status});
    } else {
      waiting_.push_back({operation, deadline_after(now, options_.operation_timeout)});
    }
  }
  check_pass();
  ask_for_next();
  return accepted;
}

std::optional<CompletionStatus> ShmChannel::run(const Operation& operation) {
  const auto found = attachments_.find(operation.key);
  if (found == attachments_.end()) return std::nullopt;
  const bool same_life = found->second.generation == operation.generation;
  CompletionStatus status = CompletionStatus::kOk;
  if (!copy(operation, found->second, status)) {
    attachments_.erase(found);
    // Another generation under the same key: attach to that one.
    if (!same_life) return std::nullopt;
    status = CompletionStatus::kRemoteAccess;
  }
  if (status == CompletionStatus::kRemoteAccess) add(page_->refused, 1);
  return status;
}

bool ShmChannel::holds(const Attachment& attachment) const {
  return page_->lease[attachment.slot].load(std::memory_order_seq_cst) == attachment.lease;
}

bool ShmChannel::copy(const Operation& operation, const Attachment& attachment,
                      CompletionStatus& status) {
  const uint64_t bytes = operation.local.size();
  const uint64_t slab_bytes = attachment.slab->size();
  const uint64_t offset = operation.remote.value - attachment.address;
  const bool inside = operation.remote.value >= attachment.address && bytes <= slab_bytes &&
                      offset <= slab_bytes - bytes;
  const bool allowed = inside && attachment.generation == operation.generation;
  const bool read = operation.kind == OperationKind::kRead;

  bool held = false;
  const bool open = pass_.use_if_open([&] {
    page_->copying.store(++copying_, std::memory_order_seq_cst);  // see PeerPage
    held = holds(attachment);
    if (held && allowed) {
      std::byte* const remote = attachment.slab->data() + offset;
      if (read) {
        std::memcpy(operation.local.data(), remote, bytes);
      } else {
        copy_to_slab(remote, operation.local);
      }
    }
    page_->copying.store(++copying_, std::memory_order_release);
  });

  if (!open) {
    status = CompletionStatus::kPeerGone;
    return true;
  }
  if (!held) return false;
  if (!allowed) {
    status = CompletionStatus::kRemoteAccess;
    return true;
  }
  add(read ? page_->reads : page_->writes, 1);
  add(read ? page_->bytes_read : page_->bytes_written, bytes);
  return true;
}

size_t ShmChannel::poll(std::span<Completion> completions) {
  if (!waiting_.empty()) {
    look();
    if (done_.empty()) check_deadline();
  }
  size_t stored = 0;
  for (; stored < completions.size() && !done_.empty(); ++stored) {
    completions[stored] = done_.front();
    done_.pop_front();
  }
  return stored;
}

size_t ShmChannel::wait(std::span<Completion> completions, Nanoseconds timeout) {
  if (completions.empty()) return 0;
  return adaptive_wait(
      options_.poll_mode, options_.spin_time, timeout, [&] { return poll(completions); },
      [&] { return idle(); }, [&](Instant deadline) { block(deadline); });
}

void ShmChannel::block(Instant deadline) {
  const Instant now = SteadyClock::read();
  const Nanoseconds left = std::max(
      Nanoseconds(0), std::min({deadline, waiting_.front().deadline, now + Seconds(60)}) - now);
  const timespec timeout{left / Seconds(1), (left % Seconds(1)).count()};
  pollfd entry{connection_.socket.get(), POLLIN, 0};
  (void)::ppoll(&entry, 1, &timeout, nullptr);  // the caller checks again, whatever the result
}

void ShmChannel::look() {
  while (usable()) {
    std::array<std::byte, kReplyBytes + 1> buffer{};
    const ReceivedPacket packet = receive_packet(connection_.socket.get(), buffer);
    if (packet.outcome == PacketOutcome::kWouldBlock) break;
    if (packet.outcome == PacketOutcome::kPeerGone)
      return break_with(CompletionStatus::kPeerGone, "the node closed the connection");
    const std::optional<Reply> reply = decode_reply(std::span(buffer).first(packet.bytes));
    if (!reply || !asked_)
      return break_with(CompletionStatus::kPeerGone, "the node sent a malformed reply");
    take_reply(*reply, packet.descriptor);
  }
  check_pass();
  ask_for_next();
}

void ShmChannel::take_reply(const Reply& reply, const Fd& memfd) {
  const Request answered = *asked_;
  asked_.reset();
  CompletionStatus answer = CompletionStatus::kRemoteAccess;
  if (reply.status == ReplyStatus::kOk) answer = attach(answered, reply, memfd);
  rerun_waiting(answered, answer);
}

CompletionStatus ShmChannel::attach(const Request& request, const Reply& reply, const Fd& memfd) {
  std::erase_if(attachments_, [&](const auto& entry) { return !holds(entry.second); });
  Result<std::shared_ptr<Mapping>> slab =
      process_->mappings.get({connection_.host_number, reply.lease}, memfd, reply.bytes);
  if (!slab) {
    log::error("shm attach_failed node={} error=\"{}\"", connection_.name, slab.error().message());
    return CompletionStatus::kLocalError;
  }
  attachments_[request.key] = {std::move(*slab), request.generation, reply.slot, reply.lease,
                               reply.address};
  return CompletionStatus::kOk;
}

void ShmChannel::rerun_waiting(const Request& answered, CompletionStatus answer) {
  for (size_t left = waiting_.size(); left > 0; --left) {
    const Waiting waiting = waiting_.front();
    waiting_.pop_front();
    const Operation& operation = waiting.operation;
    const bool answers =
        operation.key == answered.key && operation.generation == answered.generation;
    std::optional<CompletionStatus> status;
    if (answers && answer != CompletionStatus::kOk) {
      status = answer;
      if (answer == CompletionStatus::kRemoteAccess) add(page_->refused, 1);
    } else {
      status = run(operation);
    }
    if (status) {
      done_.push_back({operation.token, *status});
    } else {
      waiting_.push_back(waiting);
    }
  }
}

void ShmChannel::ask_for_next() {
  if (asked_ || waiting_.empty() || !usable()) return;
  const Operation& operation = waiting_.front().operation;
  const Request request{kProtocolVersion, RequestKind::kAttach, operation.key,
                        operation.generation};
  switch (send_packet(connection_.socket.get(), encode(request), -1)) {
    case PacketOutcome::kDone:
      asked_ = request;
      return;
    case PacketOutcome::kWouldBlock:
      return;  // the next look() sends it again
    case PacketOutcome::kPeerGone:
      return break_with(CompletionStatus::kPeerGone, "the node closed the connection");
  }
}

void ShmChannel::check_pass() {
  if (usable() && !pass_.is_open())
    break_with(CompletionStatus::kPeerGone, "a newer channel of its session took over");
}

void ShmChannel::check_deadline() {
  if (!usable() || waiting_.empty()) return;
  if (SteadyClock::read() < waiting_.front().deadline) return;
  break_with(CompletionStatus::kTimedOut, "no answer to an attach within operation_timeout");
}

void ShmChannel::break_with(CompletionStatus status, const char* reason) {
  broken_reason_ = reason;
  usable_.store(false, std::memory_order_release);  // pairs with the acquire in usable()
  while (!waiting_.empty()) {
    done_.push_back({waiting_.front().operation.token, status});
    waiting_.pop_front();
  }
  attachments_.clear();
}

std::string ShmChannel::why_broken() const {
  if (usable()) return {};
  return fmt::format("shm {}: {}", connection_.name, broken_reason_);
}

}  // namespace farpage::rdma::shm
