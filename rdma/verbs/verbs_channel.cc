#include "rdma/verbs/verbs_channel.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/timespec.h"

namespace farpage::rdma::verbs {
namespace {

constexpr size_t kCompletionsPerPoll = 16;
// One WRITE in this many is signalled; the last request of a doorbell always is.
constexpr uint64_t kSignalInterval = 16;
constexpr Instant kNever{std::numeric_limits<int64_t>::min()};
// Keeps the sum of an instant and a caller's duration from overflowing.
constexpr Nanoseconds kLongest = std::chrono::hours(24);

}  // namespace

VerbsChannel::VerbsChannel(std::shared_ptr<const Device> device, Registration registration,
                           CompletionQueue completions, QueuePair queue_pair,
                           const ChannelLimits& limits, const ChannelOptions& options)
    : limits_(limits),
      memory_(options.buffer),
      poll_mode_(options.poll_mode),
      spin_time_(std::min(options.spin_time, kLongest)),
      operation_timeout_(std::min(options.operation_timeout, kLongest)),
      device_(std::move(device)),
      registration_(std::move(registration)),
      completions_(std::move(completions)),
      queue_pair_(std::move(queue_pair)),
      ring_(limits.operations_in_flight),
      requests_(limits.operations_in_flight),
      slices_(limits.operations_in_flight) {}

// Checked here because the device would break the queue pair.
bool VerbsChannel::may_be_sent(const Operation& operation) const {
  const auto begin = reinterpret_cast<uintptr_t>(operation.local.data());
  const auto memory = reinterpret_cast<uintptr_t>(memory_.data());
  return !operation.local.empty() && operation.local.size() <= limits_.operation_bytes &&
         begin >= memory && begin - memory <= memory_.size() &&
         operation.local.size() <= memory_.size() - (begin - memory);
}

// Fills the slot that the operation has in the ring.
void VerbsChannel::prepare(const Operation& operation, uint64_t sequence, size_t index) {
  slices_[index] = {.addr = reinterpret_cast<uint64_t>(operation.local.data()),
                    .length = static_cast<uint32_t>(operation.local.size()),
                    .lkey = registration_.local_key()};
  const bool read = operation.kind == OperationKind::kRead;
  ibv_send_wr& request = requests_[index];
  request = {};
  request.wr_id = sequence;
  request.sg_list = &slices_[index];
  request.num_sge = 1;
  request.opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  if (read || sequence % kSignalInterval == 0) request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = operation.remote.value;
  request.wr.rdma.rkey = operation.key.value;
  if (index > 0) requests_[index - 1].next = &request;
}

size_t VerbsChannel::post(std::span<const Operation> operations) {
  const size_t count = std::min<size_t>(operations.size(), ring_.room());
  if (count == 0 || !queue_pair_) return 0;
  const Instant now = SteadyClock::read();
  const uint64_t first = ring_.next_sequence();
  size_t requests = 0;
  for (size_t i = 0; i < count; ++i) {
    if (may_be_sent(operations[i])) prepare(operations[i], first + i, requests++);
  }
  const Sent sent = send(requests, first, count);
  for (size_t i = 0; i < sent.accepted; ++i) {
    if (may_be_sent(operations[i])) {
      ring_.push(operations[i].token, now);
    } else {
      ring_.push_refused(operations[i].token, CompletionStatus::kLocalError);
    }
  }
  if (sent.error != 0) {
    break_channel(fail_errno("posting to the queue pair", sent.error).value().message(), kNever);
  }
  return sent.accepted;
}

// Sends the first `requests` prepared requests with one doorbell. They belong to `count`
// operations; on an error the device takes only a part of them.
VerbsChannel::Sent VerbsChannel::send(size_t requests, uint64_t first, size_t count) {
  if (requests == 0) return {.accepted = count, .error = 0};
  requests_[requests - 1].send_flags |= IBV_SEND_SIGNALED;
  ibv_send_wr* not_taken = nullptr;
  const int error = queue_pair_->post(requests_.data(), &not_taken);
  return {.accepted = error == 0 ? count : not_taken->wr_id - first, .error = error};
}

size_t VerbsChannel::poll(std::span<Completion> completions) {
  if (!harvest()) expire();
  return ring_.take(completions);
}

// Moves the device's completions into the ring; false if there was none.
bool VerbsChannel::harvest() {
  if (!queue_pair_ || !ring_.awaits_completion()) return true;
  std::array<ibv_wc, kCompletionsPerPoll> work;
  const int count = completions_.poll(work);
  if (count < 0) {
    break_channel("the completion queue is broken", kNever);
    return true;
  }
  for (int i = 0; i < count; ++i) {
    const ibv_wc& done = work[static_cast<size_t>(i)];
    const CompletionStatus status = completion_status_of(done.status);
    ring_.complete(done.wr_id, status);
    if (status == CompletionStatus::kOk) continue;
    break_channel("work completion status " + std::to_string(done.status) + " (" +
                      device_->library().wc_status_str(done.status) + ")",
                  kNever);
    break;
  }
  return count > 0;
}

// The device's own time limit can be longer than ours, or the device can be dead.
void VerbsChannel::expire() {
  const Instant deadline_passed_for = SteadyClock::read() - operation_timeout_;
  if (ring_.oldest_posted_at() > deadline_passed_for) return;
  break_channel("an operation did not complete within operation_timeout", deadline_passed_for);
}

void VerbsChannel::break_channel(const std::string& why, Instant deadline_passed_for) {
  why_broken_ = why;
  queue_pair_.reset();
  ring_.abandon(deadline_passed_for);
  usable_.store(false, std::memory_order_release);
}

size_t VerbsChannel::wait(std::span<Completion> completions, Nanoseconds timeout) {
  if (const size_t count = poll(completions); count > 0 || ring_.empty()) return count;
  if (completions.empty()) return 0;
  const Instant start = SteadyClock::read();
  const Instant until = start + std::min(timeout, kLongest);
  switch (poll_mode_) {
    case PollMode::kBusy:
      return spin(completions, until, /*yield=*/false);
    case PollMode::kAdaptive:
      if (const size_t count = spin(completions, std::min(until, start + spin_time_), true);
          count > 0) {
        return count;
      }
      return block(completions, until);
    case PollMode::kEvent:
      return block(completions, until);
  }
  return 0;
}

// sched_yield: if the other side works on this same CPU (SoftRoCE, one core), spinning alone would
// keep it from running.
size_t VerbsChannel::spin(std::span<Completion> completions, Instant until, bool yield) {
  while (true) {
    if (const size_t count = poll(completions); count > 0) return count;
    if (SteadyClock::read() >= until) return 0;
    if (yield) sched_yield();
  }
}

size_t VerbsChannel::block(std::span<Completion> completions, Instant until) {
  while (true) {
    // A completion between the last poll and arming raises no event: hence the poll after arming.
    if (!completions_.arm()) {
      break_channel("the completion queue cannot be armed", kNever);
    }
    if (const size_t count = poll(completions); count > 0) return count;
    if (SteadyClock::read() >= until) return 0;
    sleep_until_event(std::min(until, ring_.oldest_posted_at() + operation_timeout_));
  }
}

void VerbsChannel::sleep_until_event(Instant until) {
  const Nanoseconds remaining = std::max(Nanoseconds(0), until - SteadyClock::read());
  const timespec timeout = timespec_of(remaining);
  pollfd event = {.fd = completions_.event_fd(), .events = POLLIN, .revents = 0};
  if (ppoll(&event, 1, &timeout, nullptr) > 0) completions_.take_events();
}

}  // namespace farpage::rdma::verbs
