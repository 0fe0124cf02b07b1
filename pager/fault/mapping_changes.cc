#include "pager/fault/mapping_changes.h"

#include <array>

#include "base/log.h"
#include "pager/fault/discard.h"

namespace farpage::pager {
namespace {

constexpr size_t kMaxEvents = 16;

// They were protected, and perhaps copied out, where they lay before.
void cancel_evictions(Target& target, uffd::PageRun run) {
  const uint64_t end = run.first.value + run.pages;
  for (uint64_t i = target.table.next_used(run.first.value); i < end;
       i = target.table.next_used(i + 1)) {
    const PageIndex page{i};
    const PageWord word = target.table.load(page);
    if (word.state() == PageState::kEvicting)
      (void)target.table.transition(page, word, word.to(PageState::kDirty, shared_flag(word)));
  }
}

}  // namespace

void apply_changes(Target& target, std::span<uffd::Event> events) {
  const BusyPages busy = target.order != nullptr ? BusyPages::kMark : BusyPages::kSkip;
  for (uffd::Event& event : events) {
    if (const auto* unmapped = std::get_if<uffd::Unmapped>(&event)) {
      for (const uffd::PageRun& run : unmapped->runs) (void)discard_pages(target, run, busy);
    } else if (const auto* relocated = std::get_if<uffd::Relocated>(&event)) {
      for (const uffd::PageRun& run : relocated->runs) cancel_evictions(target, run);
    } else if (const auto* moved = std::get_if<uffd::Moved>(&event)) {
      for (const uffd::PageRun& run : moved->runs) {
        if (target.order != nullptr) (void)discard_pages(target, run, busy);
        log::error(
            "pager: mremap_not_followed page={} pages={}: touching the moved memory is SIGBUS",
            run.first.value, run.pages);
      }
    } else if (auto* forked = std::get_if<uffd::Forked>(&event)) {
      target.on_forked(std::move(forked->child));
    } else if (const auto* stray = std::get_if<uffd::StrayFault>(&event)) {
      log::error("pager: stray_fault address={:#x}: the program gets SIGBUS there", stray->address);
    }
  }
}

void apply_messages(Target& target) {
  std::array<uffd::Event, kMaxEvents> events;
  while (target.space.has_messages()) {
    const std::span read = std::span(events).first(target.space.read_events(events));
    apply_changes(target, read);
    for (const uffd::Event& event : read)
      if (const auto* fault = std::get_if<uffd::Fault>(&event)) target.space.wake({fault->page, 1});
  }
  target.space.end_reading();
}

}  // namespace farpage::pager
