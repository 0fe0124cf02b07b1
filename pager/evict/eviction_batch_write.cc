// Phases 3 to 5: write to the replicas, collect acknowledgements, drop.

#include <algorithm>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "pager/evict/eviction_batch.h"
#include "pager/links/slab_transfer.h"

namespace farpage::pager {
namespace {

// A replica unreachable for this long while another one acknowledged has missed a write: it is
// marked lost, and the other replicas keep the page.
constexpr Nanoseconds kReplicaPatience = Seconds(1);
constexpr uint32_t kMaxRunPages = 64;
// A batch ends, complete or not, after this fraction of the fault deadline: a thread that waits for
// room should see several batches end before its own deadline.
constexpr int64_t kBatchesInADeadline = 4;
// While a thread waits for room, a batch without a safe page waits this long for channels: the next
// batch may have safe pages.
constexpr Milliseconds kNothingSafe{50};
// For the end of the drop before, which has usually been long ago.
constexpr Nanoseconds kPrepareDrop = Milliseconds(1);

}  // namespace

const ReplicaLease& EvictionBatch::replica_of(const WriteRun& run) const {
  return *victims_[run.first].lease->replicas[run.replica];
}

// Phase 3: consecutive pages of one slab are one WRITE to each replica.
void EvictionBatch::build_runs(size_t begin, size_t end) {
  size_t i = begin;
  while (i < end) {
    if (!is_sent(victims_[i])) {
      ++i;
      continue;
    }
    const size_t first = i;
    const SlabLease* lease = victims_[first].lease;
    const auto follows = [&](size_t next) {
      const Victim& victim = victims_[next];
      return is_sent(victim) && victim.lease == lease &&
             victim.page.value == victims_[next - 1].page.value + 1 &&
             victim.buffer == victims_[next - 1].buffer + 1;
    };
    ++i;
    while (i < end && i - first < kMaxRunPages && follows(i)) ++i;
    const size_t runs_before = run_count_;
    for (uint32_t replica = 0; replica < lease->replica_count; ++replica) {
      if (!lease->replicas[replica]->is_written()) continue;
      PeerState::Wait& wait = wait_of(*lease->replicas[replica]);
      if (posted_at_ - wait.until > kReplicaPatience) wait.since = std::max(wait.since, posted_at_);
      wait.until = posted_at_;
      for (size_t v = first; v < i; ++v)
        victims_[v].unacked = static_cast<uint8_t>(victims_[v].unacked | (1U << replica));
      runs_[run_count_++] =
          WriteRun{.first = first, .count = static_cast<uint32_t>(i - first), .replica = replica};
    }
    if (run_count_ == runs_before) {
      // These pages have no replica left to write to: they stay, as long as there is room.
      for (size_t v = first; v < i; ++v) keep_resident(victims_[v], PageState::kDirty);
    }
  }
}

std::span<const EvictionBatch::WriteRun> EvictionBatch::runs() const {
  return std::span(runs_).first(run_count_);
}

bool EvictionBatch::all_done() const {
  return std::ranges::all_of(runs(), [](const WriteRun& run) { return run.done; });
}

bool EvictionBatch::any_safe() const {
  return std::ranges::any_of(std::span(victims_).first(count_), [this](const Victim& victim) {
    return !victim.keep && is_safe(victim);
  });
}

bool EvictionBatch::any_in_flight() const {
  return std::ranges::any_of(runs(), [](const WriteRun& run) { return run.in_flight; });
}

// A slow batch drops the acknowledged pages; a later batch takes the rest. While a thread waits for
// room, the batch does not wait for nodes without a channel.
bool EvictionBatch::too_late(bool moved) const {
  if (target_->closing.load(std::memory_order_acquire)) return true;
  const Nanoseconds taken = SteadyClock::read() - posted_at_;
  if (taken > target_->options.fault_deadline / kBatchesInADeadline) return true;
  if (moved || !target_->budget.has_waiters() || any_in_flight()) return false;
  return taken > kNothingSafe || any_safe();
}

// Phases 3 to 5: posts runs as far as the channels accept them, and retries failed ones until it is
// too late. Operations in flight use the buffer, so their completions, which come within the
// operation timeout, are awaited in any case.
EvictionBatch::Turn EvictionBatch::advance() {
  if (!active()) return Turn::kEnded;
  if (dropping_) return await_drop(Nanoseconds(0)) ? Turn::kEnded : Turn::kWaiting;
  const Instant now = SteadyClock::read();
  if (gap_.turn(now).count() != 0) restart_patience(now);
  const size_t moved = (closing_ ? 0 : post_runs()) + take_completions();
  if (!closing_ && !all_done()) {
    if (moved == 0) expire_replicas(now);
    closing_ = too_late(moved > 0);
    if (!closing_) return moved > 0 ? Turn::kMoved : Turn::kWaiting;
  }
  if (any_in_flight()) return Turn::kWaiting;
  if (closing_) {
    expire_replicas(now);
    for (const WriteRun& run : runs())
      if (!run.done) wait_of(replica_of(run)).until = now;
  }
  gap_.rest();
  engine_.copy_gate.end_writing();
  drop();
  return dropping_ ? Turn::kWaiting : Turn::kEnded;
}

// After phase 5.
void EvictionBatch::end() {
  forget_copies();
  freed_ = std::exchange(forgotten_, 0);
  for (size_t i = 0; i < count_; ++i)
    if (!victims_[i].keep) ++freed_;
  if (order_ == EvictionOrder::kByHint && freed_ > 0) repeat_hints();
  taken_ = std::exchange(count_, 0);
  const Instant now = SteadyClock::read();
  if (freed_ > 0) target_->eviction.progress.freed(now);
  if (stuck()) target_->eviction.progress.failed(picked_at_);
  target_->eviction.counts.batches.add();
  target_->times.evict_batch_ns.record(static_cast<uint64_t>((now - picked_at_).count()));
}

// Some pages that were called cold have left, so the others can: the batch ended before their
// WRITEs did.
void EvictionBatch::repeat_hints() {
  for (size_t i = 0; i < count_; ++i)
    if (victims_[i].late) target_->cold.put_back(victims_[i].page);
}

// This process did not run for a while: that time does not count against a node.
void EvictionBatch::restart_patience(Instant now) {
  posted_at_ = now;
  for (const WriteRun& run : runs())
    if (!run.done) wait_of(replica_of(run)).since = now;
}

bool EvictionBatch::finish() {
  bool waits = false;
  Instant waits_since{0};
  while (true) {
    const Turn turn = advance();
    if (turn == Turn::kEnded) return true;
    if (dropping_) return false;
    if (turn == Turn::kMoved) {
      waits = false;
      continue;
    }
    if (any_in_flight() && !closing_ && engine_.nodes->file() != nullptr) {
      // A thread that only yields keeps the kernel's threads of this CPU waiting, and with them
      // what the disk has done: for seconds, where the CPUs are busy.
      const Instant now = SteadyClock::read();
      if (!waits) waits_since = now;
      waits = true;
      pause_between_looks(now - waits_since);
    } else if (any_in_flight() && !closing_) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
}

// Neighbouring runs to the same node share one call: over TCP a call costs more than the page in
// it. Gathered runs are posted before the next request for a channel, which may retire a broken
// one.
size_t EvictionBatch::post_runs() {
  size_t posted = 0;
  for (uint32_t replica = 0; replica < SlabLease::kMaxPlaces; ++replica) {
    for (size_t i = 0; i < run_count_; ++i) {
      WriteRun& run = runs_[i];
      if (run.replica != replica || run.done || run.in_flight) continue;
      const ReplicaLease& replica_lease = replica_of(run);
      if (!replica_lease.is_written()) {
        run.done = true;  // the bits stay: drop() keeps pages without acknowledgement
        ++posted;
        continue;
      }
      WriteLimit& limit = limit_of(replica_lease);
      if (run.count > limit.pages()) shorten(run, limit.pages());
      if (!limit.admits(run.count)) continue;
      const auto route = posting_.route(replica_lease, [&] { posted += post_gathered(); });
      if (!route) continue;
      limit.posted(run.count);
      posting_.add(write_of(i, *route));
      if (posting_.full()) posted += post_gathered();
    }
  }
  return posted + post_gathered();
}

rdma::Operation EvictionBatch::write_of(size_t index, const Route& route) const {
  const WriteRun& run = runs_[index];
  const Victim& first = victims_[run.first];
  const rdma::ChannelLimits limits = route.channel.limits();
  FARPAGE_CHECK(limits.operation_bytes >= kMaxRunPages * kPageBytes,
                "operations of at most %u bytes", limits.operation_bytes);
  return route.operation(rdma::OperationKind::kWrite,
                         port_.buffer().subspan(static_cast<size_t>(first.buffer) * kPageBytes,
                                                run.count * kPageBytes),
                         target_->leases_of(first.word).address_of(route.replica, first.page),
                         index);
}

// The channel accepts the first ones, as many as it has room for; the others are posted later.
size_t EvictionBatch::post_gathered() {
  const auto posted = posting_.post();
  for (const rdma::Operation& operation : posted.accepted) runs_[operation.token].in_flight = true;
  for (const rdma::Operation& operation : posted.refused)
    engine_.peers[posting_.node()].write_limit.not_posted(runs_[operation.token].count);
  return posted.accepted.size();
}

size_t EvictionBatch::take_completions() {
  return port_.take_completions([this](const rdma::Completion& completion) {
    WriteRun& run = runs_[completion.token];
    run.in_flight = false;
    if (completion.status == rdma::CompletionStatus::kOk) {
      acknowledge(run);
      return;
    }
    limit_of(replica_of(run)).failed(run.count);
    if (completion.status == rdma::CompletionStatus::kRemoteAccess) {
      fail_run(run, "the node refused the WRITE");
    } else {
      target_->eviction.counts.write_failures.add();  // the next round posts it again
    }
  });
}

// See WriteLimit. The pages after the first `pages` become a run of their own. runs_ has room:
// each run has at least one page.
void EvictionBatch::shorten(WriteRun& run, uint32_t pages) {
  runs_[run_count_++] =
      WriteRun{.first = run.first + pages, .count = run.count - pages, .replica = run.replica};
  run.count = pages;
}

void EvictionBatch::acknowledge(WriteRun& run) {
  run.done = true;
  limit_of(replica_of(run)).acknowledged(run.count);
  wait_of(replica_of(run)) = {.since = SteadyClock::read(), .until = Instant{0}};
  target_->eviction.counts.writes.add();
  target_->eviction.counts.write_bytes.add(run.count * kPageBytes);
  for (size_t v = run.first; v < run.first + run.count; ++v)
    victims_[v].unacked = static_cast<uint8_t>(victims_[v].unacked & ~(1U << run.replica));
}

void EvictionBatch::fail_run(WriteRun& run, const char* why, const ReplicaLease* other) {
  target_->eviction.counts.write_failures.add();
  run.done = true;
  target_->lose_replica(victims_[run.first].page, victims_[run.first].word, replica_of(run), why,
                        other);
}

// `now`: of the turn's begin. Time that passes later in a turn, when its process is stopped, is
// only seen in the next one.
void EvictionBatch::expire_replicas(Instant now) {
  for (size_t i = 0; i < run_count_; ++i) {
    WriteRun& run = runs_[i];
    if (run.done || run.in_flight) continue;
    // Of a node that was away before, and has lent this slab since.
    if (now - replica_of(run).since < kReplicaPatience) continue;
    // A node that accepts little at a time is still reachable.
    const bool late = now - wait_of(replica_of(run)).since >= kReplicaPatience;
    // The patience applies once to a node, not once to each slab on it.
    if (!late && engine_.unreachable_for(replica_of(run).node) < kReplicaPatience) continue;
    const SlabLease* lease = victims_[run.first].lease;
    const auto acknowledged_elsewhere = [&](uint32_t replica) {
      return replica != run.replica && lease->replicas[replica]->is_read() &&
             (victims_[run.first].unacked & (1U << replica)) == 0;
    };
    for (uint32_t replica = 0; replica < lease->replica_count; ++replica) {
      if (!acknowledged_elsewhere(replica)) continue;
      fail_run(run, "it could not be reached and has missed a write", lease->replicas[replica]);
      break;
    }
  }
}

// Whether every replica that is written holds the content, and at least one can be read.
bool EvictionBatch::is_safe(const Victim& victim) const {
  if (victim.zero) return true;
  uint32_t holders = 0;
  for (uint32_t r = 0; r < victim.lease->replica_count; ++r) {
    const ReplicaLease& replica = *victim.lease->replicas[r];
    if (!replica.is_written()) continue;
    if ((victim.unacked & (1U << r)) != 0) return false;
    if (replica.is_read()) ++holders;
  }
  return holders > 0;
}

// Phase 5: drops the pages that every replica holds, unless they were written meanwhile.
void EvictionBatch::drop() {
  part_end_ = 0;
  takes_rest_ = false;
  dropping_ = true;
  (void)drop_parts();
}

// False: the target has not dropped the pages of a part yet.
bool EvictionBatch::drop_parts() {
  uffd::AddressSpace& space = target_->space;
  while (part_end_ < count_) {
    const Instant asked = SteadyClock::read();
    if (!space.prepare_drop(std::max<Nanoseconds>(drop_patience_, kPrepareDrop))) {
      keep_rest();
      break;
    }
    takes_rest_ = takes_rest_ || SteadyClock::read() - asked > kBusyMappings;
    take_part();
    if (!ends_part(drop_spans().empty() ? Status()
                                        : space.drop(drop_spans(), drop_results(), drop_patience_)))
      return false;
  }
  dropping_ = false;
  space.free_dropped();
  end();
  return true;
}

void EvictionBatch::keep_rest() {
  for (; part_end_ < count_; ++part_end_) {
    Victim& victim = victims_[part_end_];
    const bool dirty = victim.word.has(PageWord::kWasDirty) || !is_safe(victim);
    if (!victim.keep) keep_resident(victim, dirty ? PageState::kDirty : PageState::kClean);
  }
}

void EvictionBatch::take_part() {
  drop_span_count_ = 0;
  uint32_t pages = 0;
  const auto is_full = [&] {
    return target_->order != nullptr && !takes_rest_ &&
           kPart.is_reached(pages, static_cast<uint32_t>(drop_span_count_));
  };
  for (; part_end_ < count_ && !is_full(); ++part_end_) {
    Victim& victim = victims_[part_end_];
    if (victim.keep) continue;
    if (!is_safe(victim)) {
      // No replica has this content, clean or not: from now on the page counts as dirty.
      keep_resident(victim, PageState::kDirty);
      victim.late = true;
      continue;
    }
    if (victim.checksum != 0) target_->checksums_of(victim.word).set(victim.page, victim.checksum);
    const uint32_t flags = (victim.word.has(PageWord::kWasDirty) ? PageWord::kWasDirty : 0) |
                           (victim.zero ? PageWord::kWasZeros : 0);
    const PageWord dropping =
        victim.word.to(PageState::kDropping, flags | shared_flag(victim.word));
    if (!target_->table.transition(victim.page, victim.word, dropping)) {
      victim.keep = true;  // written, or discarded by the target
      ++taken_back_;
      target_->eviction.counts.pages_cancelled.add();
      continue;
    }
    victim.word = dropping;
    ++pages;
    uffd::PageRun* last = drop_span_count_ > 0 ? &drop_spans_[drop_span_count_ - 1] : nullptr;
    if (last != nullptr && last->first.value + last->pages == victim.page.value &&
        (target_->order == nullptr || last->pages < uffd::kMaxDropRun)) {
      ++last->pages;
    } else {
      drop_spans_[drop_span_count_++] = {victim.page, 1};
    }
  }
}

bool EvictionBatch::await_drop(Nanoseconds patience) {
  return ends_part(target_->space.await_drop(drop_results(), patience)) && drop_parts();
}

// A stopped target drops its pages when it continues; one that is being removed need not.
bool EvictionBatch::ends_part(const Status& dropped) {
  const bool goes_on = !dropped && dropped.error().code == ErrorCode::kTimedOut;
  if (goes_on && !target_->closing.load(std::memory_order_acquire)) return false;
  if (!dropped && !goes_on) target_->gone.store(true, std::memory_order_release);
  settle_dropped(static_cast<bool>(dropped));
  if (target_->space.end_drop()) target_->on_messages();
  // Threads that faulted during the drop wait for this.
  wake_dropped();
  return true;
}

void EvictionBatch::settle_dropped(bool dropped) {
  const uint8_t now = target_->current_epoch();
  size_t v = 0;
  uint64_t freed = 0;
  uint32_t away = 0;
  const bool has_forked = target_->image.fork_group()->has_forked();
  for (size_t s = 0; s < drop_span_count_; ++s) {
    const uffd::PageRun span = drop_spans_[s];
    const int error = drop_results_[s].sys_errno;
    const bool span_ok = dropped && error == 0;
    if (dropped && !span_ok)
      log::warn("pager: drop_refused page={} pages={} errno={}", span.first.value, span.pages,
                error);
    for (uint32_t p = 0; p < span.pages; ++p) {
      const bool ok = span_ok && !drop_results_[s].keeps(p);
      while (victims_[v].page.value != span.first.value + p) ++v;
      Victim& victim = victims_[v];
      const bool was_dirty = victim.word.has(PageWord::kWasDirty);
      const PageState next = span_ok && !ok ? PageState::kDirty : after_drop(victim.word, ok);
      const bool copied = next == PageState::kRemote && victim.copied;
      // The frame may be a relative's, too: before the page can leave, it must be the target's own.
      const bool shared = !ok && drop_results_[s].is_busy(p) && has_forked;
      const PageWord left = victim.word.to(next, copied   ? PageWord::kCompressed
                                                 : shared ? PageWord::kShared
                                                          : 0);
      target_->table.transition_owned(victim.page, victim.word,
                                      ok ? departed(left, order_, now) : left);
      victim.keep = !ok;
      if (!ok) continue;
      ++freed;
      away += victim.zero ? 0 : 1;
      if (copied) target_->eviction.counts.copies_stored.add();
      (victim.zero        ? target_->eviction.counts.pages_zero
       : victim.unchanged ? target_->eviction.counts.pages_unchanged
       : was_dirty        ? target_->eviction.counts.pages_written
                          : target_->eviction.counts.pages_clean)
          .add();
    }
  }
  target_->eviction.choice.left(order_, away, now);
  give_back(freed);
}

void EvictionBatch::wake_dropped() {
  const std::span<const uffd::PageRun> spans = drop_spans();
  // One call for neighbours: waking a page without waiters costs nothing extra.
  size_t i = 0;
  while (i < spans.size()) {
    const uint64_t first = spans[i].first.value;
    uint64_t end = first + spans[i].pages;
    for (++i; i < spans.size() && spans[i].first.value - end < kPagesPerBlock; ++i)
      end = spans[i].first.value + spans[i].pages;
    target_->space.wake({PageIndex{first}, static_cast<uint32_t>(end - first)});
  }
}

}  // namespace farpage::pager
