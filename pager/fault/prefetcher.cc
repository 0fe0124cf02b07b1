#include "pager/fault/prefetcher.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace farpage::pager {

Prefetcher::Prefetcher(LinkPort& port, uint32_t worker) : port_(port), worker_(worker) {
  FARPAGE_CHECK(port.buffer().size() >= kBufferBytes, "%zu bytes", port.buffer().size());
}

void Prefetcher::start(Target& target, const PrefetchPlan& plan) {
  // Once for the whole plan: asking again would take half of what was left to faults.
  uint32_t room = target.budget.take_spare(plan.pages);
  uint32_t done = 0;
  for (size_t i = 0; i < kRuns && done < plan.pages && room > 0; ++i) {
    Run& run = runs_[i];
    if (run.step != Step::kFree) continue;
    if (done == plan.gap && ++done == plan.pages) break;
    // Neighbours share one READ, pages of a longer stride are read one by one.
    const uint32_t end = done < plan.gap ? std::min(plan.gap, plan.pages) : plan.pages;
    const bool in_row = plan.stride == 1 || plan.stride == -1;
    const uint32_t limit = in_row ? std::min<uint32_t>(end - done, kRunPages) : 1;
    const Direction direction = plan.stride == -1 ? Direction::kDown : Direction::kUp;
    const uint64_t first =
        plan.first.value + static_cast<uint64_t>(plan.stride) * static_cast<uint64_t>(done);
    if (first >= target.table.pages()) break;
    if (!can_be_read(target.table.load(PageIndex{first}))) {
      ++done;  // the next one may be readable
      --i;
      continue;
    }
    if (!begin(i, target, PageIndex{first}, limit, room, direction)) break;
    done += run.pages;
  }
  target.budget.give_back(room);
  post_gathered();
}

void Prefetcher::start(Target& target, const Cluster& cluster) {
  uint32_t left = cluster.members;
  uint32_t room = target.budget.take_spare(static_cast<uint32_t>(std::popcount(left)));
  bool any = false;
  for (size_t i = 0; i < kRuns && left != 0 && room > 0; ++i) {
    Run& run = runs_[i];
    if (run.step != Step::kFree) continue;
    const int at = std::countr_zero(left);
    const auto limit = static_cast<uint32_t>(std::countr_one(left >> at));
    const PageIndex first{cluster.first.value + static_cast<uint64_t>(at)};
    if (!begin(i, target, first, limit, room)) break;
    run.of_cluster = any = true;
    left &= ~(((1U << run.pages) - 1) << at);
  }
  target.budget.give_back(room);
  if (any) target.counts_of(worker_).clusters.add();
  post_gathered();
}

bool Prefetcher::begin(size_t index, Target& target, PageIndex first, uint32_t limit,
                       uint32_t& room, Direction direction) {
  Run& run = runs_[index];
  run.target = &target;
  run.of_cluster = false;
  claim(run, first, std::min(limit, room), direction);
  if (run.pages == 0) return false;  // lost a race
  room -= run.pages;
  if (!run.has_copies) {
    if (gather(index)) return true;
    abandon(run);
    return false;
  }
  run.step = Step::kHasCopies;
  target.hold(worker_);
  ++busy_;
  return true;
}

void Prefetcher::claim(Run& run, PageIndex first, uint32_t limit, Direction direction) {
  run.pages = 0;
  Target& target = *run.target;
  // Below the first page of the window it is beyond its end.
  const auto at = [direction](PageIndex page, uint64_t pages) {
    return PageIndex{direction == Direction::kUp ? page.value + pages : page.value - pages};
  };
  while (run.pages < limit) {
    const PageIndex page = at(first, run.pages);
    if (page.value >= target.table.pages()) break;
    const PageWord word = target.table.load(page);
    if (!can_be_read(word)) break;
    // One READ covers one slab of one backing region, and places one behind the other.
    if (run.pages > 0 && word.backing_region() != run.words[0].backing_region()) break;
    const LeaseMap& leases = target.leases_of(word);
    if (leases.slab_of(page) != leases.slab_of(first) ||
        leases.place_of(page) != at(leases.place_of(first), run.pages))
      break;
    const bool has_copy = compressed_flag(word) != 0 && target.copies.has(page);
    if (run.pages == 0) run.has_copies = has_copy;
    if (run.has_copies != has_copy) break;
    const PageWord fetching =
        word.to(PageState::kFetching, PageWord::kFromRemote | compressed_flag(word));
    if (!target.table.transition(page, word, fetching)) break;
    run.words[run.pages++] = fetching;
  }
  run.first = first;
  if (direction == Direction::kUp || run.pages == 0) return;
  run.first = at(first, run.pages - 1);
  std::reverse(run.words.begin(), run.words.begin() + run.pages);
}

bool Prefetcher::gather(size_t index) {
  Run& run = runs_[index];
  const LeaseMap& leases = run.target->leases_of(run.words[0]);
  const SlabLease* lease = leases.find(run.first);
  FARPAGE_CHECK(lease != nullptr, "page %llu is remote without a lease",
                static_cast<unsigned long long>(run.first.value));
  for (uint32_t i = 0; i < lease->replica_count; ++i) {
    const ReplicaLease& replica =
        *lease->replicas[(run.first.value / kRunPages + i) % lease->replica_count];
    if (!replica.is_read()) continue;
    const auto route = posting_.route(replica, [this] { post_gathered(); });
    if (!route) continue;
    const rdma::ChannelLimits limits = route->channel.limits();
    if (posting_.size() == limits.operations_in_flight) return false;
    if (limits.operation_bytes < run.pages << kPageShift) continue;
    posting_.add(route->operation(rdma::OperationKind::kRead, bytes_of(index, run.pages),
                                  leases.address_of(replica, run.first), index));
    run.replica = &replica;
    run.step = Step::kOnWire;
    run.target->hold(worker_);
    ++busy_;
    return true;
  }
  return false;
}

void Prefetcher::post_gathered() {
  for (const rdma::Operation& refused : posting_.post().refused) fail(runs_[refused.token]);
}

bool Prefetcher::progress() {
  if (busy_ == 0) return false;
  const size_t taken = port_.take_completions([this](const rdma::Completion& completion) {
    complete(completion.token, completion.status);
  });
  const bool copied = take_copies();
  for (size_t i = 0; i < kRuns; ++i)
    if (runs_[i].step == Step::kToInstall) install(i);
  return taken > 0 || copied;
}

// One run in a turn: it takes some 30 us, in which no fault is answered.
bool Prefetcher::take_copies() {
  for (size_t i = 0; i < kRuns; ++i)
    if (runs_[i].step == Step::kHasCopies) return take_copies_of(i);
  return false;
}

// From the first copy on that has gone meanwhile or was damaged, the pages are Remote as before.
bool Prefetcher::take_copies_of(size_t index) {
  Run& run = runs_[index];
  uint32_t taken = 0;
  while (taken < run.pages) {
    const auto into = bytes_of(index, run.pages).subspan(size_t{taken} * kPageBytes, kPageBytes);
    if (!run.target->take_copy(PageIndex{run.first.value + taken}, run.words[taken], into,
                               run.target->counts_of(worker_)))
      break;
    ++taken;
  }
  for (uint32_t i = taken; i < run.pages; ++i) finish(run, i, PageState::kRemote);
  run.pages = taken;
  if (taken == 0) {
    release(run);
    return true;
  }
  land(run);
  return true;
}

// Its bytes are here.
void Prefetcher::land(Run& run) {
  run.step = Step::kToInstall;
  run.protection = run.target->protects_next_read(run.pages) ? uffd::Protection::kWriteProtected
                                                             : uffd::Protection::kWritable;
}

void Prefetcher::complete(size_t index, rdma::CompletionStatus status) {
  Run& run = runs_[index];
  FARPAGE_CHECK(run.step == Step::kOnWire, "completion for prefetch %zu, which waits for none",
                index);
  if (run.target == nullptr) {
    release(run);
    return;
  }
  run.target->counts_of(worker_).completions_by_status[static_cast<size_t>(status)].add();
  if (status == rdma::CompletionStatus::kOk && has_right_bytes(index)) {
    land(run);
    install(index);
    return;
  }
  fail(run);
}

// None of the run's pages is placed then: a fault reads each that is needed, from another replica.
bool Prefetcher::has_right_bytes(size_t index) {
  Run& run = runs_[index];
  bool right = true;
  for (uint32_t i = 0; i < run.pages; ++i) {
    const PageIndex page{run.first.value + i};
    const auto bytes = bytes_of(index, run.pages).subspan(size_t{i} * kPageBytes, kPageBytes);
    if (run.target->is_right(page, run.words[i], bytes)) continue;
    right = false;
    run.target->counts_of(worker_).pages_wrong.add();
    run.target->found_wrong(page, run.words[i], *run.replica);
  }
  return right;
}

void Prefetcher::install(size_t index) {
  Run& run = runs_[index];
  Target& target = *run.target;
  const PageState placed =
      run.protection == uffd::Protection::kWritable ? PageState::kDirty : PageState::kClean;
  const ChangingPages section(target.order);
  const uffd::Outcome outcome =
      any_discarded(run)
          ? uffd::Outcome::kUnmapped
          : target.space.install(run.first, bytes_of(index, run.pages), run.protection);
  if (outcome == uffd::Outcome::kRetry) {
    refused_ = true;
    return;
  }
  for (uint32_t i = 0; i < run.pages; ++i) {
    // The run may cross mappings of the target: then page by page.
    uffd::Outcome of_page = outcome;
    if (outcome != uffd::Outcome::kDone && run.pages > 1 &&
        !target.was_discarded(PageIndex{run.first.value + i})) {
      of_page = target.space.install(PageIndex{run.first.value + i},
                                     bytes_of(index, run.pages).subspan(i * kPageBytes, kPageBytes),
                                     run.protection);
    }
    switch (of_page) {
      case uffd::Outcome::kDone:
        finish(run, i, placed);
        break;
      // Placed by the first attempt or by the target itself: Dirty, which is always safe.
      case uffd::Outcome::kAlreadyPresent:
        finish(run, i, PageState::kDirty);
        break;
      case uffd::Outcome::kRetry:  // the first attempt may have placed it
        finish(run, i, PageState::kRemote, PageWord::kMaybePresent);
        break;
      case uffd::Outcome::kUnmapped:
      case uffd::Outcome::kProcessGone:
        finish(run, i, PageState::kEmpty);
        break;
    }
  }
  release(run);
}

bool Prefetcher::any_discarded(const Run& run) {
  if (run.target->order == nullptr) return false;
  for (uint32_t i = 0; i < run.pages; ++i)
    if (run.target->was_discarded(PageIndex{run.first.value + i})) return true;
  return false;
}

void Prefetcher::finish(Run& run, uint32_t page, PageState state, uint32_t flags) {
  Target& target = *run.target;
  WorkerCounts& counts = target.counts_of(worker_);
  const PageIndex index{run.first.value + page};
  const ChangingPages section(target.order);
  if (target.was_discarded(index)) state = PageState::kEmpty;
  const PageWord word = run.words[page];
  if (is_resident(state)) {
    counts.prefetch_pages.add();
    if (run.of_cluster) counts.cluster_pages.add();
    if (run.has_copies) counts.prefetch_compressed_pages.add();
    // The neighbours of a cluster are expected to be used, and nobody will see that.
    const uint8_t now = target.note_return(word);
    const PageWord here = word.to(state);
    target.end_fetching(index, word, run.of_cluster ? came_back(here, now) : stamped(here, now));
    return;
  }
  counts.prefetch_failed_pages.add();
  // A copy that was not taken is still one of these bytes.
  const uint32_t kept = state == PageState::kRemote ? flags | compressed_flag(word) : 0;
  target.end_fetching(index, word, word.to(state, kept));
  target.budget.give_back(1);
  target.space.wake({index, 1});
}

void Prefetcher::fail(Run& run) {
  abandon(run);
  release(run);
}

void Prefetcher::release(Run& run) {
  run.step = Step::kFree;
  --busy_;
  if (run.target != nullptr) std::exchange(run.target, nullptr)->let_go(worker_);
}

void Prefetcher::leave_closing() {
  if (busy_ == 0) return;
  for (Run& run : runs_) {
    if (run.step == Step::kFree || run.target == nullptr || !run.target->closing.load()) continue;
    if (run.step == Step::kOnWire) {
      std::exchange(run.target, nullptr)->let_go(worker_);
    } else {
      release(run);
    }
  }
}

void Prefetcher::abandon(Run& run) {
  for (uint32_t i = 0; i < run.pages; ++i) finish(run, i, PageState::kRemote);
}

}  // namespace farpage::pager
