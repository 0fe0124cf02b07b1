#include "pager/zeros.h"

#include <algorithm>
#include <array>

namespace farpage::pager {
namespace {

// Never written: the kernel's one zero page is behind all of them, so it is always in the cache.
alignas(kPageBytes) std::array<std::byte, kMaxZeroPages * kPageBytes> zeros;

// Pages that this thread holds.
struct Claim {
  PageIndex first;
  uint32_t pages = 0;
  std::array<PageWord, kMaxZeroPages> words;

  PageIndex page(uint32_t i) const { return PageIndex{first.value + i}; }
};

// Claims neighbours from `first` on, at most `limit`, as far as they are Empty and there is room.
void claim_from(Core& core, PageIndex first, uint32_t limit, Claim& claim) {
  claim.first = first;
  claim.pages = 0;
  const uint32_t room = core.budget.take_spare(std::min(limit, kMaxZeroPages));
  while (claim.pages < room) {
    const PageIndex page = claim.page(claim.pages);
    if (page.value >= core.table.pages()) break;
    const PageWord word = core.table.load(page);
    if (word.state() != PageState::kEmpty) break;
    const PageWord held = word.to(PageState::kFetching);
    if (!core.table.transition(page, word, held)) break;
    claim.words[claim.pages++] = held;
  }
  if (claim.pages < room) core.budget.give_back(room - claim.pages);
}

void keep(Core& core, WorkerStats& stats, const Claim& claim, uint32_t from, uint32_t to) {
  for (uint32_t i = from; i < to; ++i) {
    const PageWord word = claim.words[i];
    core.table.transition_owned(claim.page(i), word,
                                stamped(word.to(PageState::kDirty), core.next_epoch()));
    core.note_touched(claim.page(i));
  }
  stats.zeros_ahead.add(to - from);
}

void give_up(Core& core, const Claim& claim, uint32_t from) {
  if (from == claim.pages) return;
  for (uint32_t i = from; i < claim.pages; ++i)
    core.table.transition_owned(claim.page(i), claim.words[i],
                                claim.words[i].to(PageState::kEmpty));
  core.budget.give_back(claim.pages - from);
  // Whoever came meanwhile faults again.
  core.space.wake({claim.page(from), claim.pages - from});
}

bool is_there(uffd::Outcome outcome) {
  return outcome == uffd::Outcome::kDone || outcome == uffd::Outcome::kAlreadyPresent;
}

// False: the walk ends here, or an event has to be read first.
bool place(Core& core, WorkerStats& stats, const Claim& claim, uffd::FaultKind kind) {
  const uffd::Outcome whole = place_zeros(core, {claim.first, claim.pages}, kind);
  uint32_t placed = is_there(whole) ? claim.pages : 0;
  if (whole == uffd::Outcome::kUnmapped) {  // the run leaves the mapping: up to there
    while (placed < claim.pages && is_there(place_zeros(core, {claim.page(placed), 1}, kind)))
      ++placed;
  }
  keep(core, stats, claim, 0, placed);
  give_up(core, claim, placed);
  return placed == claim.pages;
}

}  // namespace

uffd::Outcome place_zeros(Core& core, uffd::PageRun run, uffd::FaultKind kind) {
  if (kind == uffd::FaultKind::kMissingRead) return core.space.zero(run);
  return core.space.install(run.first, std::span(zeros).first(run.pages * kPageBytes),
                            uffd::Protection::kWritable);
}

void place_zeros_ahead(Core& core, WorkerStats& stats, const PrefetchPlan& plan,
                       uffd::FaultKind kind) {
  Claim claim;
  uint32_t done = 0;
  while (done < plan.pages) {
    if (done == plan.gap) {
      ++done;
      continue;
    }
    const uint32_t end = done < plan.gap ? std::min(plan.gap, plan.pages) : plan.pages;
    const uint64_t first =
        plan.first.value + static_cast<uint64_t>(plan.stride) * static_cast<uint64_t>(done);
    if (first >= core.table.pages()) return;
    claim_from(core, PageIndex{first}, plan.stride == 1 ? end - done : 1, claim);
    if (claim.pages == 0) {
      ++done;  // in use already, or no room
      continue;
    }
    done += claim.pages;
    if (!place(core, stats, claim, kind)) return;
  }
}

}  // namespace farpage::pager
