#include "pager/fault/first_faults.h"

#include <algorithm>
#include <array>

#include "base/log.h"

namespace farpage::pager {

bool FirstFaults::answer() {
  std::array<uffd::Event, 16> events;
  const size_t count = child_.space->read_events(events);
  bool enough = true;
  for (uffd::Event& event : std::span(events).first(count)) {
    if (const auto* fault = std::get_if<uffd::Fault>(&event)) {
      if (answer_fault(*fault)) continue;
      child_.space->wake({fault->page, 1});
      enough = false;
    } else if (const auto* unmapped = std::get_if<uffd::Unmapped>(&event)) {
      discard(unmapped->run);
    } else {
      log::error("pager: unexpected_event of a forked child: mremap or clone past the shim");
    }
  }
  return enough;
}

bool FirstFaults::answer_fault(const uffd::Fault& fault) {
  if (pages_ == kMaxPages) return false;
  ++pages_;
  const PageWord word = child_.image->table().load(fault.page);
  return fault.kind == uffd::FaultKind::kWriteProtected ? unprotect(fault.page, word)
                                                        : give_zeros(fault.page, word);
}

bool FirstFaults::give_zeros(PageIndex page, PageWord word) {
  if (word.state() != PageState::kEmpty) return false;
  switch (child_.space->zero({page, 1}, uffd::ZeroFrames::kShared).outcome) {
    case uffd::Outcome::kDone:
    case uffd::Outcome::kAlreadyPresent: {
      PageTable& table = child_.image->table();
      table.transition_owned(page, word, word.to(PageState::kFetching));
      table.transition_owned(page, word.to(PageState::kFetching), word.to(PageState::kDirty));
      return true;
    }
    case uffd::Outcome::kRetry:
      return false;
    case uffd::Outcome::kUnmapped:
    case uffd::Outcome::kProcessGone:
      child_.space->wake({page, 1});
      return true;
  }
  return false;
}

bool FirstFaults::unprotect(PageIndex page, PageWord word) {
  if (word.state() != PageState::kClean && word.state() != PageState::kDirty) return false;
  PageTable& table = child_.image->table();
  table.transition_owned(page, word, word.to(PageState::kUnprotecting));
  table.transition_owned(page, word.to(PageState::kUnprotecting), word.to(PageState::kDirty));
  return child_.space->unprotect({page, 1}) != uffd::Outcome::kRetry;
}

void FirstFaults::discard(uffd::PageRun run) {
  PageTable& table = child_.image->table();
  const uint64_t end = std::min(run.first.value + run.pages, table.used_pages());
  for (uint64_t i = run.first.value; i < end; ++i) {
    const PageWord word = table.load(PageIndex{i});
    if (word.state() != PageState::kEmpty)
      table.transition_owned(PageIndex{i}, word, PageWord(PageState::kEmpty));
  }
}

}  // namespace farpage::pager
