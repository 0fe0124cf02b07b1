#include "pager/fault/discard.h"

#include <sched.h>

namespace farpage::pager {
namespace {

// True: the page is Empty, or is to be skipped.
bool discard_one(Target& target, PageIndex page, BusyPages busy) {
  const PageWord word = target.table.load(page);
  switch (word.state()) {
    case PageState::kEmpty:
      return true;
    case PageState::kFetching:
    case PageState::kUnprotecting:
    case PageState::kDropping:
      return busy == BusyPages::kSkip;
    case PageState::kClean:
    case PageState::kDirty:
    case PageState::kEvicting:
    case PageState::kRemote:
    case PageState::kLost:
      break;
  }
  if (!target.table.transition(page, word, PageWord(PageState::kEmpty))) return false;
  if (is_resident(word.state())) target.budget.give_back(1);
  return true;
}

}  // namespace

void discard_pages(Target& target, uffd::PageRun run, BusyPages busy) {
  for (uint64_t i = 0; i < run.pages; ++i) {
    const PageIndex page{run.first.value + i};
    while (!discard_one(target, page, busy)) {
      if (target.closing.load(std::memory_order_acquire)) return;
      target.come_forward();  // the evictor may own the page
      ::sched_yield();
    }
  }
}

}  // namespace farpage::pager
