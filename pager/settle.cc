#include "pager/settle.h"

#include <algorithm>
#include <array>
#include <vector>

namespace farpage::pager {
namespace {

constexpr Milliseconds kAgentLook{20};

// Places zeros where nothing is. While an event is unread nothing can be placed: if the page is
// absent, its next touch, or its eviction, finds that out.
PageState settle_zeros(Target& target, PageIndex page) {
  const uffd::Outcome outcome = target.space.zero({page, 1}, uffd::ZeroFrames::kShared).outcome;
  return outcome == uffd::Outcome::kUnmapped ? PageState::kEmpty : PageState::kDirty;
}

void settle_page(Target& target, PageIndex page, PageWord word) {
  PageTable& table = target.table;
  switch (word.state()) {
    case PageState::kFetching:
      if (target.order != nullptr && word.has(PageWord::kDiscarded)) {
        table.transition_owned(page, word, PageWord(PageState::kEmpty));
      } else if (word.has(PageWord::kFromRemote)) {
        table.transition_owned(page, word, word.to(PageState::kRemote, PageWord::kMaybePresent));
      } else {
        table.transition_owned(page, word, word.to(settle_zeros(target, page)));
      }
      break;
    case PageState::kUnprotecting:
      table.transition_owned(page, word, word.to(PageState::kDirty));
      break;
    case PageState::kEvicting: {
      const bool dirty = word.has(PageWord::kWasDirty);
      table.transition_owned(
          page, word, word.to(dirty ? PageState::kDirty : PageState::kClean, shared_flag(word)));
      break;
    }
    case PageState::kDropping:
    case PageState::kEmpty:
    case PageState::kClean:
    case PageState::kDirty:
    case PageState::kRemote:
    case PageState::kLost:
      break;
  }
}

// One call of the agent. False: the target is gone.
bool drop_again(Target& target, std::span<const uffd::PageRun> runs) {
  std::array<uffd::DropResult, uffd::kMaxDropRuns> results;
  const std::span<uffd::DropResult> ended(results.data(), runs.size());
  Status dropped = target.space.drop(runs, ended, kAgentLook);
  while (!dropped && dropped.error().code == ErrorCode::kTimedOut)
    dropped = target.space.await_drop(ended, kAgentLook);
  if (!dropped) return false;
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool ok = results[i].sys_errno == 0;
    for (uint32_t p = 0; p < runs[i].pages; ++p) {
      const PageIndex page{runs[i].first.value + p};
      const PageWord word = target.table.load(page);
      target.table.transition_owned(page, word, word.to(after_drop(word, ok)));
    }
  }
  return true;
}

// Where pages are moved out before they are dropped: one that is absent has been, and its replicas
// have it; one that is present stays. False: the target is gone.
bool settle_moved(Target& target, std::span<const uffd::PageRun> runs) {
  for (const uffd::PageRun& run : runs) {
    std::vector<bool> present(run.pages);
    const Status looked = target.space.find_present(run, [&](uffd::PageRun found) {
      for (uint32_t p = 0; p < found.pages; ++p)
        present[found.first.value - run.first.value + p] = true;
    });
    if (!looked) return false;
    // While an event is unread, other memory may lie where these pages were.
    if (target.space.event_pending()) present.assign(run.pages, false);
    for (uint32_t p = 0; p < run.pages; ++p) {
      const PageIndex page{run.first.value + p};
      const PageWord word = target.table.load(page);
      const PageState state = present[p] ? PageState::kDirty : after_drop(word, true);
      // It may lie elsewhere by now: an event is unread.
      const uint32_t flags = state == PageState::kRemote ? PageWord::kMaybePresent : 0;
      target.table.transition_owned(page, word, word.to(state, flags));
    }
  }
  return true;
}

}  // namespace

bool settle_pages(Target& target) {
  std::vector<uffd::PageRun> drops;
  const PageTable& table = target.table;
  for (uint64_t i = table.next_used(0); i < table.pages(); i = table.next_used(i + 1)) {
    const PageIndex page{i};
    const PageWord word = table.load(page);
    if (word.state() != PageState::kDropping) {
      settle_page(target, page, word);
    } else if (!drops.empty() && drops.back().first.value + drops.back().pages == i) {
      ++drops.back().pages;
    } else {
      drops.push_back({page, 1});
    }
  }
  if (target.order != nullptr) {
    if (!settle_moved(target, drops)) return false;
    drops.clear();
  }
  for (size_t i = 0; i < drops.size(); i += uffd::kMaxDropRuns)
    if (!drop_again(target,
                    std::span(drops).subspan(i, std::min(uffd::kMaxDropRuns, drops.size() - i))))
      return false;
  // All of it: a fault may have been read, and its page not touched yet.
  for (const uffd::PageRun& run : target.space.runs_in(0, UINT64_MAX)) target.space.wake(run);
  target.space.wake_strays();
  return true;
}

}  // namespace farpage::pager
