#include "rdma/verbs/verbs_channel.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"

namespace farpage::rdma::verbs {
namespace {

constexpr size_t kCompletionsPerPoll = 16;
// Every so many WRITEs one is signalled; the last request of a doorbell always is.
constexpr uint64_t kSignalInterval = 16;
constexpr Instant kNever{std::numeric_limits<int64_t>::min()};
// So that no sum of an instant and a caller's duration overflows.
constexpr Nanoseconds kLongest = std::chrono::hours(24);

timespec timespec_of(Nanoseconds duration) {
  const auto seconds = std::chrono::duration_cast<Seconds>(duration);
  return {.tv_sec = seconds.count(), .tv_nsec = (duration - seconds).count()};
}

}  // namespace

VerbsChannel::VerbsChannel(std::shared_ptr<const Device> device, Registration buffer,
                           CompletionQueue completions, QueuePair queue_pair,
                           const ChannelLimits& limits, const ChannelOptions& options)
    : limits_(limits),
      poll_mode_(options.poll_mode),
      spin_time_(std::min(options.spin_time, kLongest)),
      operation_timeout_(std::min(options.operation_timeout, kLongest)),
      device_(std::move(device)),
      buffer_(std::move(buffer)),
      completions_(std::move(completions)),
      queue_pair_(std::move(queue_pair)),
      ring_(limits.operations_in_flight),
      requests_(limits.operations_in_flight),
      slices_(limits.operations_in_flight) {}

void VerbsChannel::prepare(const Operation& operation, size_t index) {
  FARPAGE_CHECK(operation.local.size() <= limits_.operation_bytes,
                "operation of %zu bytes, limit %u", operation.local.size(),
                limits_.operation_bytes);
  slices_[index] = {.addr = reinterpret_cast<uint64_t>(operation.local.data()),
                    .length = static_cast<uint32_t>(operation.local.size()),
                    .lkey = buffer_.local_key()};
  const uint64_t sequence = ring_.next_sequence() + index;
  const bool read = operation.kind == OperationKind::kRead;
  ibv_send_wr& request = requests_[index];
  request = {};
  request.wr_id = sequence;
  request.next = &request + 1;
  request.sg_list = &slices_[index];
  request.num_sge = 1;
  request.opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
  if (read || sequence % kSignalInterval == 0) request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = operation.remote.value;
  request.wr.rdma.rkey = operation.key.value;
}

size_t VerbsChannel::post(std::span<const Operation> operations) {
  const size_t count = std::min<size_t>(operations.size(), ring_.room());
  if (count == 0 || !queue_pair_) return 0;
  for (size_t i = 0; i < count; ++i) prepare(operations[i], i);
  requests_[count - 1].next = nullptr;
  requests_[count - 1].send_flags |= IBV_SEND_SIGNALED;

  ibv_send_wr* not_taken = nullptr;
  const int error = queue_pair_->post(requests_.data(), &not_taken);
  const size_t accepted = error == 0 ? count : static_cast<size_t>(not_taken - requests_.data());
  const Instant now = SteadyClock::read();
  for (size_t i = 0; i < accepted; ++i) ring_.push(operations[i].token, now);
  if (error != 0) {
    break_channel(fail_errno("posting to the queue pair", error).value().message(), kNever);
  }
  return accepted;
}

size_t VerbsChannel::poll(std::span<Completion> completions) {
  if (!harvest()) expire();
  return ring_.take(completions);
}

// Moves what the device has completed into the ring; false if there was nothing.
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

// The device's own time limit can be longer than ours, or it can be dead.
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

// sched_yield: where the other side's work is done on this very CPU (SoftRoCE, one core), spinning
// alone would keep it from being done.
size_t VerbsChannel::spin(std::span<Completion> completions, Instant until, bool yield) {
  while (true) {
    if (const size_t count = poll(completions); count > 0) return count;
    if (SteadyClock::read() >= until) return 0;
    if (yield) sched_yield();
  }
}

size_t VerbsChannel::block(std::span<Completion> completions, Instant until) {
  while (true) {
    // What completes between the last poll and arming raises no event: hence the poll in between.
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
