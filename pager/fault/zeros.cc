#include "pager/fault/zeros.h"

#include <algorithm>
#include <array>

namespace farpage::pager {
namespace {

// Pages that identify a stream, the same number as for prefetching (trend.h).
constexpr uint32_t kFewest = 4;

bool is_empty(const PageTable& table, uint64_t page) {
  return table.load(PageIndex{page}).state() == PageState::kEmpty;
}

// Number of pages directly below `page` that are Empty, or that are not; at most `limit`.
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

// Pages that this thread holds, in the order of their addresses.
struct Claim {
  uffd::PageRun run;
  std::array<PageWord, uffd::kMaxZeroRun> words;

  PageIndex page(uint32_t i) const { return PageIndex{run.first.value + i}; }
  bool upwards(PageIndex fault) const { return run.first == fault; }
};

// Claims the run as far as its pages are still Empty. `word`: of the page with the fault.
void claim_run(Target& target, PageIndex fault, PageWord word, uffd::PageRun run, Claim& claim) {
  claim.run = {run.first, 0};
  while (claim.run.pages < run.pages) {
    const PageIndex page = claim.page(claim.run.pages);
    const PageWord empty = page == fault ? word : target.table.load(page);
    const PageWord held = empty.to(PageState::kFetching);
    if (empty.state() != PageState::kEmpty || !target.table.transition(page, empty, held)) return;
    claim.words[claim.run.pages++] = held;
  }
}

// Returns what it placed. If the run leaves the mapping, retries with half of it.
uffd::PageRun place(Target& target, const Claim& claim, PageIndex fault, uffd::ZeroFrames frames) {
  for (uint32_t pages = claim.run.pages; pages > 0; pages /= 2) {
    const PageIndex first = claim.upwards(fault) ? fault : PageIndex{fault.value - (pages - 1)};
    const uffd::ZeroResult result = target.space.zero({first, pages}, frames);
    if (result.pages > 0 || result.outcome != uffd::Outcome::kUnmapped)
      return {first, result.pages};
  }
  return {fault, 0};
}

bool contains(uffd::PageRun run, PageIndex page) {
  return page.value - run.first.value < run.pages;
}

// The placed pages become Dirty, the others Empty again.
void settle(Target& target, const Claim& claim, uffd::PageRun placed) {
  for (uint32_t i = 0; i < claim.run.pages; ++i) {
    const PageIndex page = claim.page(i);
    const PageWord word = claim.words[i];
    if (contains(placed, page)) {
      target.end_fetching(page, word, stamped(word.to(PageState::kDirty), target.next_epoch()));
      target.note_touched(page);
    } else {
      target.end_fetching(page, word, word.to(PageState::kEmpty));
    }
  }
}

}  // namespace

uffd::PageRun fresh_walk(const PageTable& table, PageIndex page, uint32_t limit, bool sequential) {
  limit = std::min(limit, uffd::kMaxZeroRun - 1);
  const uint32_t used_below =
      sequential ? limit : count_below(table, page.value, /*empty=*/false, limit);
  if (used_below >= kFewest)
    return {page, 1 + count_above(table, page.value, /*empty=*/true, used_below)};
  const uint32_t used_above = count_above(table, page.value, /*empty=*/false, limit);
  if (used_above < kFewest) return {page, 1};
  const uint32_t ahead = count_below(table, page.value, /*empty=*/true, used_above);
  return {PageIndex{page.value - ahead}, 1 + ahead};
}

bool fill_walk(Target& target, WorkerCounts& counts, const uffd::Fault& fault, PageWord word,
               uffd::PageRun walk) {
  const uint32_t room = target.budget.take_spare(walk.pages - 1);
  const bool upwards = walk.first == fault.page;
  const PageIndex first = upwards ? fault.page : PageIndex{fault.page.value - room};
  Claim claim;
  claim_run(target, fault.page, word, {first, room + 1}, claim);
  uffd::PageRun placed{fault.page, 0};
  if (contains(claim.run, fault.page))
    placed = place(target, claim, fault.page, frames_for(fault.kind));
  settle(target, claim, placed);
  const bool answered = contains(placed, fault.page);
  const uint32_t ahead = placed.pages - (answered ? 1 : 0);
  target.budget.give_back(room - ahead);
  counts.zeros_ahead.add(ahead);
  return answered;
}

}  // namespace farpage::pager
