#include "rdma/file/file_channel.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>

#include "base/timespec.h"
#include "rdma/adaptive_wait.h"
#include "rdma/limits.h"

namespace farpage::rdma::file {

FileChannel::FileChannel(std::shared_ptr<FileCore> core, std::unique_ptr<FileIo> io,
                         const ChannelOptions& options, ChannelLimits limits)
    : core_(std::move(core)),
      io_(std::move(io)),
      options_(options),
      limits_(limits),
      done_(limits.operations_in_flight) {}

FileChannel::~FileChannel() {
  if (!usable() || io_->in_flight() == 0) return;
  io_->give_up([](uint64_t) {});
  core_->bury(std::move(io_));
}

size_t FileChannel::post(std::span<const Operation> operations) {
  if (!usable()) return 0;
  const Instant deadline = deadline_after(SteadyClock::read(), options_.operation_timeout);
  size_t accepted = 0;
  while (accepted < operations.size() && accept(operations[accepted], deadline)) ++accepted;
  if (usable()) io_->submit();
  return accepted;
}

bool FileChannel::accept(const Operation& operation, Instant deadline) {
  if (waiting() + done_.size() == limits_.operations_in_flight || !usable()) return false;
  const bool whole_pages =
      operation.local.size() % kPageBytes == 0 && operation.remote.value % kPageBytes == 0;
  if (!whole_pages || !local_side_is_valid(operation, options_.buffer, limits_.operation_bytes)) {
    done_.push_back({operation.token, CompletionStatus::kLocalError});
    return true;
  }
  switch (io_->begin(operation, deadline)) {
    case FileIo::Began::kYes:
      return true;
    case FileIo::Began::kNoRoom:
      return false;
    case FileIo::Began::kRefused:
      done_.push_back({operation.token, CompletionStatus::kRemoteAccess});
      return true;
    case FileIo::Began::kFenced:
      break_with(CompletionStatus::kPeerGone, "a newer channel of its session took over");
      return false;
  }
  return false;
}

size_t FileChannel::poll(std::span<Completion> completions) {
  if (usable()) {
    io_->take([this](const Completion& completion) { done_.push_back(completion); });
    if (done_.empty() && waiting() > 0) check_deadline();
  }
  size_t stored = 0;
  for (; stored < completions.size() && !done_.empty(); ++stored) {
    completions[stored] = done_.front();
    done_.pop_front();
  }
  return stored;
}

size_t FileChannel::wait(std::span<Completion> completions, Nanoseconds timeout) {
  if (completions.empty()) return 0;
  return adaptive_wait(
      options_.poll_mode, options_.spin_time, timeout, [&] { return poll(completions); },
      [&] { return waiting() == 0 && done_.empty(); }, [&](Instant deadline) { block(deadline); });
}

void FileChannel::block(Instant deadline) {
  const Instant now = SteadyClock::read();
  const Instant first = io_->first_deadline().value_or(deadline);
  const Nanoseconds left =
      std::max(Nanoseconds(0), std::min({deadline, first, now + Seconds(60)}) - now);
  const timespec timeout = timespec_of(left);
  pollfd entry{io_->descriptor(), POLLIN, 0};
  (void)::ppoll(&entry, 1, &timeout, nullptr);  // the caller checks again, whatever the result
}

void FileChannel::check_deadline() {
  const Instant now = SteadyClock::read();
  if (now < next_look_) return;
  const std::optional<Instant> first = io_->first_deadline();
  if (!first) return;
  next_look_ = *first;  // those that begin later are due later
  if (now >= *first)
    break_with(CompletionStatus::kTimedOut, "no answer of the disk within operation_timeout");
}

void FileChannel::break_with(CompletionStatus first, const char* reason) {
  broken_reason_ = reason;
  usable_.store(false, std::memory_order_release);  // pairs with the acquire in usable()
  CompletionStatus status = first;
  io_->give_up([&](uint64_t token) {
    done_.push_back({token, status});
    status = CompletionStatus::kFlushed;
  });
  core_->bury(std::move(io_));
}

std::string FileChannel::why_broken() const {
  if (usable()) return {};
  return fmt::format("file: {}", broken_reason_);
}

}  // namespace farpage::rdma::file
