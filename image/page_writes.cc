#include "image/page_writes.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <thread>

#include "base/check.h"

namespace farpage::image {

void PageWrites::start(const pager::LeaseMap& leases, uint32_t slot, std::span<std::byte> bytes,
                       uint64_t token) {
  FARPAGE_CHECK(has_room(), "%zu WRITEs are outstanding", busy_);
  const pager::SlabLease* lease = leases.find(PageIndex{slot});
  FARPAGE_CHECK(lease != nullptr, "slot %u has no lease", slot);
  const Instant now = SteadyClock::read();
  uint32_t started = 0;
  for (Write& write : writes_) {
    if (started == lease->replica_count) break;
    if (write.step != Step::kFree) continue;
    write = Write{Step::kQueued, &leases, lease->replicas[started++], slot, bytes, token, now};
    ++busy_;
    ++queued_;
  }
}

void PageWrites::post_gathered() {
  for (const rdma::Operation& operation : posting_.post().accepted) {
    writes_[operation.token].step = Step::kOnWire;
    --queued_;
  }
}

void PageWrites::post_queued() {
  for (size_t i = 0; i < kWrites && queued_ > 0; ++i) {
    Write& write = writes_[i];
    if (write.step != Step::kQueued) continue;
    const auto route = posting_.route(*write.replica, [this] { post_gathered(); });
    if (!route) continue;
    posting_.add(route->operation(rdma::OperationKind::kWrite, write.bytes,
                                  write.leases->address_of(*write.replica, PageIndex{write.slot}),
                                  i));
  }
  post_gathered();
}

bool PageWrites::is_last_of(uint64_t token) const {
  return std::none_of(writes_.begin(), writes_.end(), [&](const Write& write) {
    return write.step != Step::kFree && write.token == token;
  });
}

Status PageWrites::complete(const rdma::Completion& completion, const OnDone& done) {
  Write& write = writes_[completion.token];
  FARPAGE_CHECK(write.step == Step::kOnWire, "completion for WRITE %llu, which waits for none",
                static_cast<unsigned long long>(completion.token));
  if (completion.status == rdma::CompletionStatus::kOk) {
    written_bytes_ += write.bytes.size();
    write.step = Step::kFree;
    --busy_;
    if (is_last_of(write.token)) done(write.token);
    return {};
  }
  if (completion.status == rdma::CompletionStatus::kRemoteAccess)
    return fail(ErrorCode::kUnavailable,
                fmt::format("node '{}' has lost slab {} of the image: remove the image, and push "
                            "it again",
                            links_.nodes().name_of(write.replica->node),
                            write.leases->slab_of(PageIndex{write.slot}).value));
  write.step = Step::kQueued;
  ++queued_;
  return {};
}

Status PageWrites::check_patience() const {
  const Instant now = SteadyClock::read();
  for (const Write& write : writes_)
    if (write.step != Step::kFree && now - write.since > patience_)
      return fail(ErrorCode::kTimedOut,
                  fmt::format("node '{}' has acknowledged nothing for {} s: push again when it is "
                              "back, which goes on where this ended",
                              links_.nodes().name_of(write.replica->node),
                              std::chrono::duration_cast<Seconds>(patience_).count()));
  return {};
}

Status PageWrites::progress(const OnDone& done) {
  Status status;
  (void)port_.take_completions([&](const rdma::Completion& completion) {
    const Status completed = complete(completion, done);
    if (status && !completed) status = completed;
  });
  FARPAGE_TRY_VOID(status);
  post_queued();
  return check_patience();
}

Status PageWrites::wait_a_little(const OnDone& done) {
  constexpr Nanoseconds kWait = std::chrono::microseconds(200);
  // What is not on the wire waits for a channel.
  if (queued_ == busy_) {
    std::this_thread::sleep_for(kWait);
    return progress(done);
  }
  rdma::Channel* only = nullptr;
  pager::NodeIndex only_node;
  size_t busy_channels = 0;
  port_.for_each_busy_channel([&](pager::NodeIndex node, rdma::Channel& channel) {
    ++busy_channels;
    only = &channel;
    only_node = node;
  });
  if (busy_channels != 1) {
    ::sched_yield();
    return progress(done);
  }
  std::array<rdma::Completion, kWrites> completions;
  const size_t got = only->wait(completions, kWait);
  port_.completed(only_node, static_cast<uint32_t>(got));
  for (const rdma::Completion& completion : std::span(completions).first(got))
    FARPAGE_TRY_VOID(complete(completion, done));
  return progress(done);
}

}  // namespace farpage::image
