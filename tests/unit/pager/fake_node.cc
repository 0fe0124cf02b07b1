#include "fake_node.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace farpage::pager {

class FakeNode::FakeChannel final : public rdma::Channel {
 public:
  FakeChannel(FakeNode& node, rdma::ChannelLimits limits) : node_(node), limits_(limits) {}
  ~FakeChannel() override {
    const std::lock_guard lock(node_.mutex_);
    std::erase(node_.channels_, this);
    std::erase_if(node_.waiting_, [this](const Waiting& w) { return w.channel == this; });
  }

  rdma::ChannelLimits limits() const override { return limits_; }
  rdma::TransportKind kind() const override { return rdma::TransportKind::kLoop; }
  size_t post(std::span<const rdma::Operation> operations) override {
    const std::lock_guard lock(node_.mutex_);
    if (!usable_) return 0;
    const size_t accepted =
        std::min<size_t>(operations.size(), limits_.operations_in_flight - in_flight_);
    if (accepted > 0) node_.posts_.fetch_add(1);
    for (const rdma::Operation& operation : operations.first(accepted)) {
      FARPAGE_CHECK(operation.local.size() <= limits_.operation_bytes, "%zu bytes",
                    operation.local.size());
      const bool read = operation.kind == rdma::OperationKind::kRead;
      node_.log_.add((read ? "READ " : "WRITE ") + node_.name_ + " " +
                     text_of({PageIndex{operation.remote.value >> kPageShift},
                              static_cast<uint32_t>(operation.local.size() >> kPageShift)}));
      ++in_flight_;
      const Waiting waiting{operation, this};
      if (node_.answer_) {
        node_.complete(waiting, *node_.answer_);
      } else {
        node_.waiting_.push_back(waiting);
      }
    }
    return accepted;
  }
  size_t poll(std::span<rdma::Completion> completions) override {
    const std::lock_guard lock(node_.mutex_);
    const size_t taken = std::min(completions.size(), done_.size());
    std::copy_n(done_.begin(), taken, completions.begin());
    done_.erase(done_.begin(), done_.begin() + static_cast<ptrdiff_t>(taken));
    in_flight_ -= taken;
    return taken;
  }
  // Does not wait: the test itself may have to answer.
  size_t wait(std::span<rdma::Completion> completions, Nanoseconds) override {
    return poll(completions);
  }
  bool usable() const override { return usable_.load(); }
  std::string why_broken() const override { return usable() ? "" : "the test broke it"; }

  // With the node's mutex held.
  void done(uint64_t token, rdma::CompletionStatus status) { done_.push_back({token, status}); }
  void break_it() { usable_ = false; }

 private:
  FakeNode& node_;
  const rdma::ChannelLimits limits_;
  std::atomic<bool> usable_{true};
  size_t in_flight_ = 0;
  std::vector<rdma::Completion> done_;
};

FakeNode::FakeNode(std::string name, uint64_t pages, CallLog& log)
    : name_(std::move(name)),
      log_(log),
      memory_(std::move(*Mapping::anonymous(pages << kPageShift))) {}

uint64_t FakeNode::word(uint64_t page) const {
  const std::lock_guard lock(mutex_);
  uint64_t word = 0;
  std::memcpy(&word, memory_.data() + (page << kPageShift), sizeof word);
  return word;
}

void FakeNode::set_word(uint64_t page, uint64_t word) {
  const std::lock_guard lock(mutex_);
  std::memcpy(memory_.data() + (page << kPageShift), &word, sizeof word);
}

void FakeNode::answer_all(std::optional<rdma::CompletionStatus> status) {
  const std::lock_guard lock(mutex_);
  answer_ = status;
}

size_t FakeNode::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size();
}

void FakeNode::answer(rdma::CompletionStatus status, size_t place) {
  const std::lock_guard lock(mutex_);
  FARPAGE_CHECK(place < waiting_.size(), "%zu operations wait", waiting_.size());
  const Waiting waiting = waiting_[place];
  waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(place));
  complete(waiting, status);
}

void FakeNode::complete(const Waiting& waiting, rdma::CompletionStatus status) {
  const rdma::Operation& operation = waiting.operation;
  if (status == rdma::CompletionStatus::kOk) {
    const std::span<std::byte> remote =
        memory_.bytes().subspan(operation.remote.value, operation.local.size());
    if (operation.kind == rdma::OperationKind::kRead) {
      std::ranges::copy(remote, operation.local.begin());
    } else {
      std::ranges::copy(operation.local, remote.begin());
    }
  }
  waiting.channel->done(operation.token, status);
}

void FakeNode::break_channels(rdma::CompletionStatus first) {
  const std::lock_guard lock(mutex_);
  for (FakeChannel* channel : channels_) channel->break_it();
  for (const Waiting& waiting : std::exchange(waiting_, {}))
    complete(waiting, std::exchange(first, rdma::CompletionStatus::kFlushed));
}

std::unique_ptr<rdma::Channel> FakeNode::connect(rdma::ChannelLimits limits) {
  auto channel = std::make_unique<FakeChannel>(*this, limits);
  const std::lock_guard lock(mutex_);
  channels_.push_back(channel.get());
  return channel;
}

}  // namespace farpage::pager
