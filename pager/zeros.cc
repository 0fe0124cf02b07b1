#include "pager/zeros.h"

#include <algorithm>
#include <array>

namespace farpage::pager {
namespace {

// A walk is known by so many pages: as for those that are read ahead (trend.h).
constexpr uint32_t kFewest = 4;

// Never written: the kernel's one zero page is behind all of them, so it is always in the cache.
alignas(kPageBytes) std::array<std::byte, kMaxZeroPages * kPageBytes> zeros;

bool is_empty(const PageTable& table, uint64_t page) {
  return table.load(PageIndex{page}).state() == PageState::kEmpty;
}

// Pages below `page`, next to it, that are Empty, or that are not: at most `limit`.
uint32_t count_below(const PageTable& table, uint64_t page, bool empty, uint32_t limit) {
  uint32_t count = 0;
  while (count < limit && count < page && is_empty(table, page - 1 - count) == empty) ++count;
  return count;
}
uint32_t count_above(const PageTable& table, uint64_t page, bool empty, uint32_t limit) {
  uint32_t count = 0;
  while (count < limit && page + 1 + count < table.pages() &&
         is_empty(table, page + 1 + count) == empty)
    ++count;
  return count;
}

// Pages that this thread holds.
struct Claim {
  PageIndex first;
  uint32_t pages = 0;
  std::array<PageWord, kMaxZeroPages> words;

  PageIndex page(uint32_t i) const { return PageIndex{first.value + i}; }
  uffd::PageRun run(uint32_t from, uint32_t count) const { return {page(from), count}; }
};

// From the first page of the run on, as far as they are still Empty and there is room.
void claim_from(Core& core, uffd::PageRun run, Claim& claim) {
  claim.first = run.first;
  claim.pages = 0;
  const uint32_t room = core.budget.take_spare(std::min(run.pages, kMaxZeroPages));
  while (claim.pages < room) {
    const PageIndex page = claim.page(claim.pages);
    const PageWord word = core.table.load(page);
    if (word.state() != PageState::kEmpty) break;
    const PageWord held = word.to(PageState::kFetching);
    if (!core.table.transition(page, word, held)) break;
    claim.words[claim.pages++] = held;
  }
  if (claim.pages < room) core.budget.give_back(room - claim.pages);
}

void keep(Core& core, WorkerStats& stats, const Claim& claim, uint32_t pages) {
  for (uint32_t i = 0; i < pages; ++i) {
    const PageWord word = claim.words[i];
    core.table.transition_owned(claim.page(i), word,
                                stamped(word.to(PageState::kDirty), core.next_epoch()));
    core.note_touched(claim.page(i));
  }
  stats.zeros_ahead.add(pages);
}

void give_up(Core& core, const Claim& claim, uint32_t from) {
  if (from == claim.pages) return;
  for (uint32_t i = from; i < claim.pages; ++i)
    core.table.transition_owned(claim.page(i), claim.words[i],
                                claim.words[i].to(PageState::kEmpty));
  core.budget.give_back(claim.pages - from);
  // Whoever came meanwhile faults again.
  core.space.wake(claim.run(from, claim.pages - from));
}

bool is_there(uffd::Outcome outcome) {
  return outcome == uffd::Outcome::kDone || outcome == uffd::Outcome::kAlreadyPresent;
}

// After kRetry any part of them may be there. A page that counts as present and is not gets zeros
// when it is touched; one that is there and does not count would never leave.
void keep_uncertain(Core& core, WorkerStats& stats, const Claim& claim) {
  keep(core, stats, claim, claim.pages);
  core.space.wake(claim.run(0, claim.pages));  // as in give_up()
}

// False: nothing more is to be placed here.
bool place(Core& core, WorkerStats& stats, const Claim& claim, uffd::FaultKind kind) {
  const uffd::Outcome whole = place_zeros(core, claim.run(0, claim.pages), kind);
  if (whole == uffd::Outcome::kRetry) {
    keep_uncertain(core, stats, claim);
    return false;
  }
  uint32_t placed = is_there(whole) ? claim.pages : 0;
  if (whole == uffd::Outcome::kUnmapped) {  // the run leaves the mapping: up to there
    while (placed < claim.pages && is_there(place_zeros(core, claim.run(placed, 1), kind)))
      ++placed;
  }
  keep(core, stats, claim, placed);
  give_up(core, claim, placed);
  return placed == claim.pages;
}

}  // namespace

uffd::Outcome place_zeros(Core& core, uffd::PageRun run, uffd::FaultKind kind) {
  if (kind == uffd::FaultKind::kMissingRead) return core.space.zero(run);
  return core.space.install(run.first, std::span(zeros).first(run.pages * kPageBytes),
                            uffd::Protection::kWritable);
}

uffd::PageRun fresh_pages_ahead(const PageTable& table, PageIndex page, uint32_t limit,
                                bool sequential) {
  const uint32_t used_below =
      sequential ? limit : count_below(table, page.value, /*empty=*/false, limit);
  if (used_below >= kFewest)
    return {PageIndex{page.value + 1}, count_above(table, page.value, /*empty=*/true, used_below)};
  const uint32_t used_above = count_above(table, page.value, /*empty=*/false, limit);
  if (used_above < kFewest) return {page, 0};
  const uint32_t pages = count_below(table, page.value, /*empty=*/true, used_above);
  return {PageIndex{page.value - pages}, pages};
}

void place_zeros_ahead(Core& core, WorkerStats& stats, const uffd::Fault& fault, uint32_t limit,
                       bool sequential) {
  uffd::PageRun rest = fresh_pages_ahead(core.table, fault.page, limit, sequential);
  Claim claim;
  while (rest.pages > 0) {
    claim_from(core, rest, claim);
    if (claim.pages == 0) return;  // no room, or somebody else is at it
    if (!place(core, stats, claim, fault.kind)) return;
    rest = {claim.page(claim.pages), rest.pages - claim.pages};
  }
}

}  // namespace farpage::pager
