#include "rdma/loop/loop_channel.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "rdma/adaptive_wait.h"
#include "rdma/limits.h"

namespace farpage::rdma {
namespace loop {
namespace {

constexpr int kFiller = 0xDB;

bool breaks_channel(CompletionStatus status) {
  return status == CompletionStatus::kPeerGone || status == CompletionStatus::kTimedOut ||
         status == CompletionStatus::kFlushed;
}

}  // namespace

LoopChannel::LoopChannel(std::shared_ptr<Network> network, std::shared_ptr<HostCore> host,
                         const ChannelOptions& options, ChannelLimits limits)
    : network_(std::move(network)),
      host_(std::move(host)),
      pass_(host_->fences.enter(options.session)),
      options_(options),
      limits_(limits),
      random_(network_->next_channel_seed()),
      done_(limits.operations_in_flight) {
  pending_.reserve(limits.operations_in_flight);
  host_->peers.fetch_add(1, std::memory_order_relaxed);
}

LoopChannel::~LoopChannel() {
  host_->peers.fetch_sub(1, std::memory_order_relaxed);
}

uint64_t LoopChannel::random_up_to(uint64_t maximum) {
  return maximum == 0 ? 0 : random_() % (maximum + 1);
}

size_t LoopChannel::post(std::span<const Operation> operations) {
  if (!host_->alive.load(std::memory_order_acquire) || !pass_.is_open()) advance();
  if (!usable()) return 0;
  const size_t room = limits_.operations_in_flight - pending_.size() - done_.size();
  const size_t accepted = std::min(room, operations.size());
  const LoopFaults faults = network_->faults();
  const Instant now = network_->now();
  reorder_ = faults.reorder;
  for (const Operation& operation : operations.first(accepted)) {
    if (!local_side_is_valid(operation, options_.buffer, limits_.operation_bytes)) {
      done_.push_back({operation.token, CompletionStatus::kLocalError});
      continue;
    }
    if (operation.kind == OperationKind::kRead)
      std::memset(operation.local.data(), kFiller, operation.local.size());
    pending_.push_back(make_pending(operation, faults, now));
  }
  return accepted;
}

LoopChannel::Pending LoopChannel::make_pending(const Operation& operation, const LoopFaults& faults,
                                               Instant now) {
  Pending pending;
  pending.operation = operation;
  pending.deadline = deadline_after(now, options_.operation_timeout);
  pending.due_poll = polls_ + 1 + random_up_to(faults.delay_polls);
  pending.due_time =
      now + Nanoseconds(random_up_to(static_cast<uint64_t>(faults.delay_time.count())));
  pending.lost = random_up_to(999) < faults.lost_per_mille ||
                 (faults.write_bytes_at_once > 0 && operation.kind == OperationKind::kWrite &&
                  write_bytes_in_flight() + operation.local.size() > faults.write_bytes_at_once);
  if (random_up_to(999) < faults.failed_per_mille) pending.failure = faults.failed_status;
  if (const auto failure = network_->take_failure()) pending.failure = *failure;
  return pending;
}

size_t LoopChannel::write_bytes_in_flight() const {
  size_t bytes = 0;
  for (const Pending& pending : pending_)
    if (pending.operation.kind == OperationKind::kWrite) bytes += pending.operation.local.size();
  return bytes;
}

size_t LoopChannel::poll(std::span<Completion> completions) {
  ++polls_;
  if (usable() && !pending_.empty()) advance();
  size_t stored = 0;
  for (; stored < completions.size() && !done_.empty(); ++stored) {
    completions[stored] = done_.front();
    done_.pop_front();
  }
  return stored;
}

size_t LoopChannel::wait(std::span<Completion> completions, Nanoseconds timeout) {
  if (completions.empty()) return 0;
  return adaptive_wait(
      options_.poll_mode, options_.spin_time, timeout, [&] { return poll(completions); },
      [&] { return pending_.empty() && done_.empty(); },
      [](Instant) { std::this_thread::sleep_for(std::chrono::microseconds(20)); });
}

void LoopChannel::advance() {
  if (!host_->alive.load(std::memory_order_acquire))
    return break_with(CompletionStatus::kPeerGone, CompletionStatus::kPeerGone, "the host died");
  if (!pass_.is_open())
    return break_with(CompletionStatus::kPeerGone, CompletionStatus::kPeerGone,
                      "a newer channel of its session took over");
  const Instant now = network_->now();
  if (!host_->stalled.load(std::memory_order_acquire)) complete_due(now);
  if (!usable() || pending_.empty() || now < pending_.front().deadline) return;
  break_with(CompletionStatus::kTimedOut, CompletionStatus::kFlushed,
             "no answer within operation_timeout");
}

void LoopChannel::complete_due(Instant now) {
  const auto due = [&](const Pending& pending) {
    return !pending.lost && pending.due_poll <= polls_ && pending.due_time <= now;
  };
  for (size_t i = 0; usable() && i < pending_.size();) {
    if (due(pending_[i])) {
      complete(i);
    } else if (reorder_) {
      ++i;
    } else {
      return;
    }
  }
}

void LoopChannel::complete(size_t index) {
  const Pending pending = pending_[index];
  pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(index));
  const CompletionStatus status =
      pending.failure == CompletionStatus::kOk ? execute(pending.operation) : pending.failure;
  done_.push_back({pending.operation.token, status});
  if (breaks_channel(status))
    break_with(CompletionStatus::kFlushed, CompletionStatus::kFlushed, "an injected failure");
}

CompletionStatus LoopChannel::execute(const Operation& operation) {
  CompletionStatus status = CompletionStatus::kPeerGone;
  (void)pass_.use_if_open([&] { status = copy(operation); });
  return status;
}

CompletionStatus LoopChannel::copy(const Operation& operation) {
  const std::span<std::byte> local = operation.local;
  const KeyTable::Use remote =
      host_->keys.acquire(operation.key, operation.generation, operation.remote, local.size());
  if (!remote) {
    host_->refused.fetch_add(1, std::memory_order_relaxed);
    return CompletionStatus::kRemoteAccess;
  }
  const bool read = operation.kind == OperationKind::kRead;
  std::memcpy(read ? local.data() : remote.bytes().data(),
              read ? remote.bytes().data() : local.data(), local.size());
  (read ? host_->reads : host_->writes).fetch_add(1, std::memory_order_relaxed);
  (read ? host_->bytes_read : host_->bytes_written)
      .fetch_add(local.size(), std::memory_order_relaxed);
  return CompletionStatus::kOk;
}

void LoopChannel::break_with(CompletionStatus first, CompletionStatus rest, const char* reason) {
  broken_reason_ = reason;
  usable_.store(false, std::memory_order_release);  // pairs with the acquire in usable()
  CompletionStatus status = first;
  for (const Pending& pending : pending_) {
    done_.push_back({pending.operation.token, status});
    status = rest;
  }
  pending_.clear();
}

std::string LoopChannel::why_broken() const {
  return usable() ? std::string() : std::string("loop: ") + broken_reason_;
}

namespace {

class LoopTransport final : public Transport {
 public:
  explicit LoopTransport(std::shared_ptr<Network> network) : network_(std::move(network)) {}

  TransportKind kind() const override { return TransportKind::kLoop; }

  Result<std::unique_ptr<Channel>> connect(const TransportAddress& address,
                                           const ChannelOptions& options,
                                           const QueuePairExchange& /*exchange*/) override {
    if (address.kind != TransportKind::kLoop)
      return fail(ErrorCode::kUnsupported, "the address is not a loop one");
    FARPAGE_TRY_VOID(check_buffer(options));
    std::shared_ptr<HostCore> host = network_->find_host(address.text);
    if (host == nullptr)
      return fail(ErrorCode::kUnavailable, "no loop host named '" + address.text + "' is alive");
    return std::make_unique<LoopChannel>(network_, std::move(host), options, limits_for(options));
  }

 private:
  const std::shared_ptr<Network> network_;
};

}  // namespace
}  // namespace loop

std::unique_ptr<Transport> make_loop_transport(const std::shared_ptr<LoopNetwork>& network) {
  return std::make_unique<loop::LoopTransport>(std::static_pointer_cast<loop::Network>(network));
}

}  // namespace farpage::rdma
