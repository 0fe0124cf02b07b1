#include "pager/fault/fetcher.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/loop_gap.h"

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
  FARPAGE_CHECK(has_room(), "no room for page %llu", static_cast<unsigned long long>(page.value));
  for (Fetch& fetch : fetches_) {
    if (fetch.step != Step::kFree) continue;
    const bool has_copy = compressed_flag(word) != 0 && target.copies.has(page);
    fetch = Fetch{.step = has_copy ? Step::kHasCopy : Step::kQueued,
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

std::optional<Route> Fetcher::choose_replica(Fetch& fetch, const SlabLease& lease) {
  if (&lease != std::exchange(fetch.lease, &lease)) fetch.wrong_once = fetch.wrong_twice = 0;
  uint32_t alive = 0;
  uint32_t wrong = 0;
  for (uint32_t i = 0; i < lease.replica_count; ++i) {
    const auto index = static_cast<uint32_t>((fetch.page.value + i) % lease.replica_count);
    const ReplicaLease& replica = *lease.replicas[index];
    if (!replica.is_read()) continue;
    ++alive;
    if ((fetch.wrong_twice & (1U << index)) != 0) {
      ++wrong;
      continue;
    }
    if ((fetch.tried_replicas & (1U << index)) != 0) continue;
    const auto route = posting_.route(replica, [this] { post_gathered(); });
    if (!route) continue;
    fetch.replica = &replica;
    fetch.place = static_cast<uint8_t>(index);
    return route;
  }
  if (alive == 0) {
    // Another one may have taken the place of the last since the lease was looked up.
    const SlabLease* now = fetch.target->leases_of(fetch.word).find(fetch.page);
    if (now == &lease) give_up(fetch, "every replica of the page is lost");
    return std::nullopt;
  }
  if (wrong == alive) {
    give_up(fetch, "no replica has the bytes that were written there");
    return std::nullopt;
  }
  // All that can be reached have failed: again from the first, after a pause. One that failed may
  // answer before one without a channel is back.
  fetch.tried_replicas = 0;
  fetch.not_before = SteadyClock::read() + kRetryPause;
  return std::nullopt;
}

bool Fetcher::gather(size_t index) {
  Fetch& fetch = fetches_[index];
  const LeaseMap& leases = fetch.target->leases_of(fetch.word);
  const SlabLease* lease = leases.find(fetch.page);
  FARPAGE_CHECK(lease != nullptr, "page %llu is remote without a lease",
                static_cast<unsigned long long>(fetch.page.value));
  const std::optional<Route> route = choose_replica(fetch, *lease);
  if (!route) return false;
  posting_.add(route->operation(rdma::OperationKind::kRead, bytes_of(index),
                                leases.address_of(route->replica, fetch.page), index));
  return true;
}

void Fetcher::post_gathered() {
  const auto posted = posting_.post();
  if (posted.accepted.empty()) return;
  const Instant now = SteadyClock::read();
  for (const rdma::Operation& operation : posted.accepted) {
    Fetch& fetch = fetches_[operation.token];
    if (fetch.posted.count() == 0)
      fetch.target->times.queue_ns.record(static_cast<uint64_t>((now - fetch.since).count()));
    fetch.step = Step::kOnWire;
    fetch.posted = now;
    fetch.not_before = Instant{0};  // time on the wire is no gap between two looks
    --pending_;
  }
}

void Fetcher::post_queued() {
  if (pending_ == 0) return;
  for (size_t i = 0; i < kFetches; ++i) {
    Fetch& fetch = fetches_[i];
    if (fetch.step != Step::kQueued) continue;
    if (fetch.not_before.count() != 0 && fetch.not_before > SteadyClock::read()) continue;
    const Instant looked = fetch.not_before;
    if (!gather(i) && fetch.step == Step::kQueued && is_too_late(fetch, looked, Nanoseconds(0)))
      give_up(fetch, "no replica could be reached before the deadline");
  }
  post_gathered();
}

bool Fetcher::progress() {
  if (busy_ == 0) return false;
  const size_t taken =
      port_.take_completions([this](const rdma::Completion& completion) { complete(completion); });
  bool copied = false;
  if (pending_ > 0) {
    for (Fetch& fetch : fetches_) {
      if (fetch.step == Step::kHasCopy) copied = take_copy(fetch) || copied;
      if (fetch.step == Step::kToInstall) install(fetch, SteadyClock::read());
      if (fetch.step == Step::kToPoison) poison(fetch);
    }
    post_queued();
  }
  return taken > 0 || copied;
}

// After the READs of the other faults were posted. False: the copy has gone or was damaged, and the
// page is read like any other.
bool Fetcher::take_copy(Fetch& fetch) {
  const auto into = bytes_of(static_cast<size_t>(&fetch - fetches_.data()));
  if (!fetch.target->take_copy(fetch.page, fetch.word, into, counts_of(fetch))) {
    fetch.step = Step::kQueued;
    return false;
  }
  fetch.from_copy = true;
  fetch.step = Step::kToInstall;
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
  std::array<rdma::Completion, kFetches> completions;
  const size_t got = only->wait(completions, kWait);
  port_.completed(only_node, static_cast<uint32_t>(got));
  for (const rdma::Completion& completion : std::span(completions).first(got)) complete(completion);
}

void Fetcher::complete(const rdma::Completion& completion) {
  Fetch& fetch = fetches_[completion.token];
  FARPAGE_CHECK(fetch.step == Step::kOnWire, "completion for fetch %llu, which waits for none",
                static_cast<unsigned long long>(completion.token));
  ++pending_;
  if (fetch.target == nullptr) {
    release(fetch);
    return;
  }
  WorkerCounts& counts = counts_of(fetch);
  counts.completions_by_status[static_cast<size_t>(completion.status)].add();
  if (completion.status == rdma::CompletionStatus::kOk) [[likely]] {
    const Instant now = SteadyClock::read();
    fetch.target->times.wire_ns.record(static_cast<uint64_t>((now - fetch.posted).count()));
    counts.reads.add();
    counts.read_bytes.add(kPageBytes);
    if (has_right_bytes(fetch)) [[likely]] {
      fetch.step = Step::kToInstall;
      install(fetch, now);
      return;
    }
  }
  counts.retries.add();
  fetch.step = Step::kQueued;
  if (completion.status == rdma::CompletionStatus::kRemoteAccess) {
    fetch.target->lose_replica(fetch.page, fetch.word, *fetch.replica, "the node refused the READ");
  } else if (completion.status != rdma::CompletionStatus::kFlushed) {
    // Flushed: the operation itself did not fail, so the same replica may be retried.
    fetch.tried_replicas = static_cast<uint8_t>(fetch.tried_replicas | (1U << fetch.place));
  }
  if (is_too_late(fetch, fetch.posted, engine_.options.channel.operation_timeout))
    give_up(fetch, "no replica answered before the deadline");
}

// Another replica is asked first. Bytes may change on their way, so each has two tries.
bool Fetcher::has_right_bytes(Fetch& fetch) {
  const size_t index = static_cast<size_t>(&fetch - fetches_.data());
  if (fetch.target->is_right(fetch.page, fetch.word, bytes_of(index))) return true;
  counts_of(fetch).pages_wrong.add();
  const auto place = static_cast<uint8_t>(1U << fetch.place);
  fetch.wrong_twice = static_cast<uint8_t>(fetch.wrong_twice | (fetch.wrong_once & place));
  fetch.wrong_once = static_cast<uint8_t>(fetch.wrong_once | place);
  fetch.target->found_wrong(fetch.page, fetch.word, *fetch.replica);
  return false;
}

void Fetcher::install(Fetch& fetch, Instant now) {
  Target& target = *fetch.target;
  const bool write = fetch.kind == uffd::FaultKind::kMissingWrite || !target.protects_next_read();
  const size_t index = static_cast<size_t>(&fetch - fetches_.data());
  const ChangingPages section(target.order);
  const uffd::Outcome outcome =
      target.was_discarded(fetch.page)
          ? uffd::Outcome::kUnmapped
          : target.space.install(
                fetch.page, bytes_of(index),
                write ? uffd::Protection::kWritable : uffd::Protection::kWriteProtected);
  switch (outcome) {
    case uffd::Outcome::kDone: {
      target.end_fetching(fetch.page, fetch.word,
                          came_back(fetch.word.to(write ? PageState::kDirty : PageState::kClean),
                                    target.note_return(fetch.word)));
      const Instant after = SteadyClock::read();
      WorkerCounts& counts = counts_of(fetch);
      (fetch.from_copy ? counts.faults_compressed : counts.faults_remote).add();
      target.times.install_ns.record(static_cast<uint64_t>((after - now).count()));
      (fetch.from_copy ? target.times.compressed_ns : target.times.fault_ns)
          .record(static_cast<uint64_t>((after - fetch.since).count()));
      release(fetch);
      return;
    }
    case uffd::Outcome::kAlreadyPresent:
      // The target mapped its own memory there (MAP_FIXED past the shim): that content is valid.
      target.end_fetching(fetch.page, fetch.word,
                          stamped(fetch.word.to(PageState::kDirty), target.next_epoch()));
      release(fetch);
      return;
    case uffd::Outcome::kRetry:
      refused_ = true;
      return;  // the worker drains the events, then retries
    case uffd::Outcome::kProcessGone:
      target.gone.store(true, std::memory_order_release);
      [[fallthrough]];
    case uffd::Outcome::kUnmapped:
      target.end_fetching(fetch.page, fetch.word, fetch.word.to(PageState::kEmpty));
      target.budget.give_back(1);
      target.space.wake({fetch.page, 1});
      release(fetch);
      return;
  }
}

// Whether the fault has waited past the deadline, without the time in which this process was
// stopped. `looked`: the fetch's last check, at most `longest` ago if the process ran (LoopGap).
bool Fetcher::is_too_late(Fetch& fetch, Instant looked, Nanoseconds longest) const {
  const Instant now = SteadyClock::read();
  if (looked.count() != 0 && now - looked > longest + LoopGap::kLongestTurn)
    fetch.since += now - looked - longest;
  return now - fetch.since > engine_.options.fault_deadline;
}

void Fetcher::give_up(Fetch& fetch, const char* why) {
  Target& target = *fetch.target;
  counts_of(fetch).faults_failed.add();
  const SlabLease* lease = target.leases_of(fetch.word).find(fetch.page);
  std::string nodes;
  for (uint32_t i = 0; lease != nullptr && i < lease->replica_count; ++i)
    nodes += (i > 0 ? "," : "") + engine_.nodes->name_of(lease->replicas[i]->node);
  log::error(
      "pager: page_lost address={:#x} page={} nodes={} after_ms={} reason=\"{}\": the program gets "
      "SIGBUS there",
      target.space.address_of(fetch.page), fetch.page.value, nodes,
      (SteadyClock::read() - fetch.since).count() / 1'000'000, why);
  const ChangingPages section(target.order);
  const bool given_up = target.was_discarded(fetch.page);
  target.end_fetching(fetch.page, fetch.word,
                      fetch.word.to(given_up ? PageState::kEmpty : PageState::kLost));
  target.budget.give_back(1);
  fetch.step = Step::kToPoison;
  poison(fetch);
}

void Fetcher::poison(Fetch& fetch) {
  Target& target = *fetch.target;
  const ChangingPages section(target.order);
  if (target.order != nullptr && target.table.load(fetch.page).state() != PageState::kLost) {
    target.space.wake({fetch.page, 1});  // the program has given it up
    release(fetch);
    return;
  }
  const Status done = target.space.poison({fetch.page, 1});
  if (!done && done.error().code == ErrorCode::kUnavailable) return;  // retried after the events
  if (!done)
    log::error("pager: poison_failed page={} {}", fetch.page.value, done.error().message());
  release(fetch);
}

void Fetcher::release(Fetch& fetch) {
  fetch.step = Step::kFree;
  --busy_;
  --pending_;
  if (fetch.target != nullptr) std::exchange(fetch.target, nullptr)->let_go(worker_);
}

void Fetcher::leave_closing() {
  if (busy_ == 0) return;
  for (Fetch& fetch : fetches_) {
    if (fetch.step == Step::kFree || fetch.target == nullptr || !fetch.target->closing.load())
      continue;
    if (fetch.step == Step::kOnWire) {
      std::exchange(fetch.target, nullptr)->let_go(worker_);
    } else {
      release(fetch);
    }
  }
}

}  // namespace farpage::pager
