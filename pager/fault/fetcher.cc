#include "pager/fault/fetcher.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/loop_gap.h"
#include "pager/compress/page_codec.h"

namespace farpage::pager {
namespace {

// Pause after all replicas have failed or none could be reached, before the next round.
constexpr Nanoseconds kRetryPause = std::chrono::microseconds(500);

}  // namespace

Fetcher::Fetcher(EngineCore& engine, LinkPort& port, uint32_t worker)
    : engine_(engine), port_(port), worker_(worker) {
  FARPAGE_CHECK(port.buffer().size() >= kBufferBytes, "%zu bytes", port.buffer().size());
}

void Fetcher::start(Target& target, PageIndex page, PageWord word, uffd::FaultKind kind,
                    Instant since) {
  FARPAGE_CHECK(has_room(), "no slot for page %llu", static_cast<unsigned long long>(page.value));
  for (Slot& slot : slots_) {
    if (slot.step != Step::kFree) continue;
    const bool has_copy = compressed_flag(word) != 0 && target.copies.has(page);
    slot = Slot{.step = has_copy ? Step::kHasCopy : Step::kQueued,
                .kind = kind,
                .target = &target,
                .page = page,
                .word = word,
                .since = since};
    target.hold(worker_);
    ++busy_;
    ++pending_;
    return;
  }
}

std::optional<Route> Fetcher::choose_replica(Slot& slot, const SlabLease& lease) {
  uint32_t alive = 0;
  for (uint32_t i = 0; i < lease.replica_count; ++i) {
    const auto index = static_cast<uint32_t>((slot.page.value + i) % lease.replica_count);
    const ReplicaLease& replica = *lease.replicas[index];
    if (!replica.is_read()) continue;
    ++alive;
    if ((slot.tried_replicas & (1U << index)) != 0) continue;
    const auto route = posting_.route(replica, [this] { post_gathered(); });
    if (!route) continue;
    slot.replica = &replica;
    slot.place = static_cast<uint8_t>(index);
    return route;
  }
  if (alive == 0) {
    give_up(slot, "every replica of the page is lost");
    return std::nullopt;
  }
  // All that can be reached have failed: again from the first, after a pause. One that failed may
  // answer before one without a channel is back.
  slot.tried_replicas = 0;
  slot.not_before = SteadyClock::read() + kRetryPause;
  return std::nullopt;
}

bool Fetcher::gather(size_t index) {
  Slot& slot = slots_[index];
  const LeaseMap& leases = slot.target->leases_of(slot.word);
  const SlabLease* lease = leases.find(slot.page);
  FARPAGE_CHECK(lease != nullptr, "page %llu is remote without a lease",
                static_cast<unsigned long long>(slot.page.value));
  const std::optional<Route> route = choose_replica(slot, *lease);
  if (!route) return false;
  posting_.add(route->operation(rdma::OperationKind::kRead, bytes_of(index),
                                leases.address_of(route->replica, slot.page), index));
  return true;
}

void Fetcher::post_gathered() {
  const auto posted = posting_.post();
  if (posted.accepted.empty()) return;
  const Instant now = SteadyClock::read();
  for (const rdma::Operation& operation : posted.accepted) {
    Slot& slot = slots_[operation.token];
    if (slot.posted.count() == 0)
      slot.target->times.queue_ns.record(static_cast<uint64_t>((now - slot.since).count()));
    slot.step = Step::kOnWire;
    slot.posted = now;
    slot.not_before = Instant{0};  // time on the wire is no gap between two looks
    --pending_;
  }
}

void Fetcher::post_queued() {
  if (pending_ == 0) return;
  for (size_t i = 0; i < kSlots; ++i) {
    Slot& slot = slots_[i];
    if (slot.step != Step::kQueued) continue;
    if (slot.not_before.count() != 0 && slot.not_before > SteadyClock::read()) continue;
    const Instant looked = slot.not_before;
    if (!gather(i) && slot.step == Step::kQueued && is_too_late(slot, looked, Nanoseconds(0)))
      give_up(slot, "no replica could be reached before the deadline");
  }
  post_gathered();
}

bool Fetcher::progress() {
  if (busy_ == 0) return false;
  const size_t taken =
      port_.take_completions([this](const rdma::Completion& completion) { complete(completion); });
  bool copied = false;
  if (pending_ > 0) {
    for (Slot& slot : slots_) {
      if (slot.step == Step::kHasCopy) copied = take_copy(slot) || copied;
      if (slot.step == Step::kToInstall) install(slot, SteadyClock::read());
      if (slot.step == Step::kToPoison) poison(slot);
    }
    post_queued();
  }
  return taken > 0 || copied;
}

// After the READs of the other faults were posted. False: the copy has gone, and the page is read
// like any other.
bool Fetcher::take_copy(Slot& slot) {
  std::array<std::byte, CompressedPages::kMaxBytes> block;
  const auto copy = slot.target->copies.take(slot.page, block);
  if (!copy) {
    slot.step = Step::kQueued;
    return false;
  }
  decompress_page(std::span(block).first(copy->bytes),
                  bytes_of(static_cast<size_t>(&slot - slots_.data())));
  if (slot.target->is_early(copy->moment)) counts_of(slot).early_copies.add();
  slot.from_copy = true;
  slot.step = Step::kToInstall;
  return true;
}

void Fetcher::wait_a_little() {
  constexpr Nanoseconds kWait = std::chrono::microseconds(100);
  rdma::Channel* only = nullptr;
  NodeIndex only_node;
  size_t busy_channels = 0;
  port_.for_each_busy_channel([&](NodeIndex node, rdma::Channel& channel) {
    ++busy_channels;
    only = &channel;
    only_node = node;
  });
  if (busy_channels != 1 || pending_ > 0) return;
  std::array<rdma::Completion, kSlots> completions;
  const size_t got = only->wait(completions, kWait);
  port_.completed(only_node, static_cast<uint32_t>(got));
  for (const rdma::Completion& completion : std::span(completions).first(got)) complete(completion);
}

void Fetcher::complete(const rdma::Completion& completion) {
  Slot& slot = slots_[completion.token];
  FARPAGE_CHECK(slot.step == Step::kOnWire, "completion for slot %llu, which waits for none",
                static_cast<unsigned long long>(completion.token));
  ++pending_;
  if (slot.target == nullptr) {
    release(slot);
    return;
  }
  WorkerCounts& counts = counts_of(slot);
  counts.completions_by_status[static_cast<size_t>(completion.status)].add();
  if (completion.status == rdma::CompletionStatus::kOk) [[likely]] {
    const Instant now = SteadyClock::read();
    slot.target->times.wire_ns.record(static_cast<uint64_t>((now - slot.posted).count()));
    counts.reads.add();
    counts.read_bytes.add(kPageBytes);
    slot.step = Step::kToInstall;
    install(slot, now);
    return;
  }
  counts.retries.add();
  slot.step = Step::kQueued;
  if (completion.status == rdma::CompletionStatus::kRemoteAccess) {
    slot.target->lose_replica(slot.page, slot.word, *slot.replica, "the node refused the READ");
  } else if (completion.status != rdma::CompletionStatus::kFlushed) {
    // Flushed: the operation itself did not fail, so the same replica may be retried.
    slot.tried_replicas = static_cast<uint8_t>(slot.tried_replicas | (1U << slot.place));
  }
  if (is_too_late(slot, slot.posted, engine_.options.channel.operation_timeout))
    give_up(slot, "no replica answered before the deadline");
}

void Fetcher::install(Slot& slot, Instant now) {
  Target& target = *slot.target;
  const bool write = slot.kind == uffd::FaultKind::kMissingWrite || !target.protects_next_read();
  const size_t index = static_cast<size_t>(&slot - slots_.data());
  const uffd::Outcome outcome =
      target.space.install(slot.page, bytes_of(index),
                           write ? uffd::Protection::kWritable : uffd::Protection::kWriteProtected);
  switch (outcome) {
    case uffd::Outcome::kDone: {
      target.end_fetching(slot.page, slot.word,
                          came_back(slot.word.to(write ? PageState::kDirty : PageState::kClean),
                                    target.note_return(slot.word)));
      const Instant after = SteadyClock::read();
      WorkerCounts& counts = counts_of(slot);
      (slot.from_copy ? counts.faults_compressed : counts.faults_remote).add();
      target.times.install_ns.record(static_cast<uint64_t>((after - now).count()));
      (slot.from_copy ? target.times.compressed_ns : target.times.fault_ns)
          .record(static_cast<uint64_t>((after - slot.since).count()));
      release(slot);
      return;
    }
    case uffd::Outcome::kAlreadyPresent:
      // The target mapped its own memory there (MAP_FIXED past the shim): that content is valid.
      target.end_fetching(slot.page, slot.word,
                          stamped(slot.word.to(PageState::kDirty), target.next_epoch()));
      release(slot);
      return;
    case uffd::Outcome::kRetry:
      return;  // the worker drains the events, then retries
    case uffd::Outcome::kProcessGone:
      target.gone.store(true, std::memory_order_release);
      [[fallthrough]];
    case uffd::Outcome::kUnmapped:
      target.end_fetching(slot.page, slot.word, slot.word.to(PageState::kEmpty));
      target.budget.give_back(1);
      target.space.wake({slot.page, 1});
      release(slot);
      return;
  }
}

// Whether the fault has waited past the deadline, without the time in which this process was
// stopped. `looked`: the slot's last check, at most `longest` ago if the process ran (LoopGap).
bool Fetcher::is_too_late(Slot& slot, Instant looked, Nanoseconds longest) const {
  const Instant now = SteadyClock::read();
  if (looked.count() != 0 && now - looked > longest + LoopGap::kLongestTurn)
    slot.since += now - looked - longest;
  return now - slot.since > engine_.options.fault_deadline;
}

void Fetcher::give_up(Slot& slot, const char* why) {
  Target& target = *slot.target;
  counts_of(slot).faults_failed.add();
  const SlabLease* lease = target.leases_of(slot.word).find(slot.page);
  std::string nodes;
  for (uint32_t i = 0; lease != nullptr && i < lease->replica_count; ++i)
    nodes += (i > 0 ? "," : "") + engine_.nodes->name_of(lease->replicas[i]->node);
  log::error(
      "pager: page_lost address={:#x} page={} nodes={} after_ms={} reason=\"{}\": the program gets "
      "SIGBUS there",
      target.space.address_of(slot.page), slot.page.value, nodes,
      (SteadyClock::read() - slot.since).count() / 1'000'000, why);
  target.end_fetching(slot.page, slot.word, slot.word.to(PageState::kLost));
  target.budget.give_back(1);
  slot.step = Step::kToPoison;
  poison(slot);
}

void Fetcher::poison(Slot& slot) {
  const Status done = slot.target->space.poison({slot.page, 1});
  if (!done && done.error().code == ErrorCode::kUnavailable) return;  // retried after the events
  if (!done) log::error("pager: poison_failed page={} {}", slot.page.value, done.error().message());
  release(slot);
}

void Fetcher::release(Slot& slot) {
  slot.step = Step::kFree;
  --busy_;
  --pending_;
  if (slot.target != nullptr) std::exchange(slot.target, nullptr)->let_go(worker_);
}

void Fetcher::leave_closing() {
  if (busy_ == 0) return;
  for (Slot& slot : slots_) {
    if (slot.step == Step::kFree || slot.target == nullptr || !slot.target->closing.load())
      continue;
    if (slot.step == Step::kOnWire) {
      std::exchange(slot.target, nullptr)->let_go(worker_);
    } else {
      release(slot);
    }
  }
}

}  // namespace farpage::pager
