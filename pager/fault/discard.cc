#include "pager/fault/discard.h"

#include <sched.h>

namespace farpage::pager {
namespace {

enum class Discarded : uint8_t { kYes, kBusy, kChanged };

Discarded discard_one(Target& target, PageIndex page, BusyPages busy) {
  const PageWord word = target.table.load(page);
  switch (word.state()) {
    case PageState::kEmpty:
      return Discarded::kYes;
    case PageState::kFetching:
      if (busy != BusyPages::kMark || word.has(PageWord::kDiscarded)) return Discarded::kBusy;
      return target.table.mark_discarded(page, word) ? Discarded::kBusy : Discarded::kChanged;
    case PageState::kUnprotecting:
    case PageState::kDropping:
      return Discarded::kBusy;
    case PageState::kClean:
    case PageState::kDirty:
    case PageState::kEvicting:
    case PageState::kRemote:
    case PageState::kLost:
      break;
  }
  if (!target.table.transition(page, word, PageWord(PageState::kEmpty))) return Discarded::kChanged;
  if (is_resident(word.state())) target.budget.give_back(1);
  if (target.recorder) [[unlikely]]
    target.recorder->discarded(page);
  if (compressed_flag(word) != 0) target.copies.forget(page);
  return Discarded::kYes;
}

}  // namespace

bool discard_pages(Target& target, uffd::PageRun run, BusyPages busy) {
  bool all = true;
  const uint64_t end = run.first.value + run.pages;
  for (uint64_t i = target.table.next_used(run.first.value); i < end;
       i = target.table.next_used(i + 1)) {
    const PageIndex page{i};
    Discarded discarded = discard_one(target, page, busy);
    while (discarded == Discarded::kChanged ||
           (discarded == Discarded::kBusy && busy == BusyPages::kWait)) {
      if (target.closing.load(std::memory_order_acquire)) return false;
      target.come_forward();  // the evictor may own the page
      ::sched_yield();
      discarded = discard_one(target, page, busy);
    }
    all = all && discarded == Discarded::kYes;
  }
  return all;
}

}  // namespace farpage::pager
