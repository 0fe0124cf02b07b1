#include "page_words.h"

#include <algorithm>
#include <string>

namespace farpage::simulation {
namespace {

using pager::PageState;
using pager::PageWord;

std::string name_of(const SimulatedSpace& space, PageIndex page) {
  return "space " + std::to_string(space.number()) + " page " + std::to_string(page.value);
}

}  // namespace

void PageWords::add(const pager::Pager& pager, const SimulatedSpace& space, uint32_t group) {
  const Scheduler::Undisturbed undisturbed(scheduler_);
  (void)pager.is_lost(PageIndex{0});  // it reads one word: that of the page
  tables_.push_back({static_cast<const uint32_t*>(last_loaded_word()), &space, group});
}

void PageWords::remove(const SimulatedSpace& space) {
  std::erase_if(tables_, [&](const Table& table) { return table.space == &space; });
}

PageWord PageWords::word(const SimulatedSpace& space, PageIndex page) const {
  const auto table = std::ranges::find(tables_, &space, &Table::space);
  return PageWord(table->words[page.value]);
}

void PageWords::changed(const uint32_t* word, uint32_t from, uint32_t to) {
  const auto table = std::ranges::find_if(tables_, [word](const Table& candidate) {
    return word >= candidate.words && word < candidate.words + candidate.space->pages();
  });
  if (table == tables_.end()) return;
  const PageIndex page{static_cast<uint64_t>(word - table->words)};
  const PageWord before(from);
  const PageWord after(to);
  if (before.state() == after.state()) return;
  std::string text(to_string(before.state()));
  text += " to ";
  text += to_string(after.state());
  scheduler_.note(
      {.what = "moves", .space = table->space->number(), .page = page.value, .text = text});
  check(*table, page, before, after);
}

void PageWords::check(const Table& table, PageIndex page, PageWord from, PageWord to) const {
  const SimulatedSpace& space = *table.space;
  if (space.ended() || space.is_unmapped(page)) return;
  const bool dropped = from.state() == PageState::kDropping &&
                       (to.state() == PageState::kRemote || to.state() == PageState::kEmpty);
  if (dropped && space.is_present(page))
    scheduler_.fail(name_of(space, page) + " is " + std::string(to_string(to.state())) +
                    " and present");
  if (to.state() == PageState::kDropping && space.is_present(page) && !space.is_protected(page))
    scheduler_.fail(name_of(space, page) + " is dropped although it can be written");
  if (to.state() == PageState::kEvicting && to.has(PageWord::kWasDirty))
    check_slot(table, page, to);
}

void PageWords::check_slot(const Table& table, PageIndex page, PageWord to) const {
  for (const Table& other : tables_) {
    if (other.group != table.group || other.space == table.space) continue;
    const PageWord word(other.words[page.value]);
    if (word.backing_region() != to.backing_region() || !refers_to_slot(word)) continue;
    scheduler_.fail(name_of(*table.space, page) + " is about to be written to a slot that " +
                    name_of(*other.space, page) + " refers to");
  }
}

}  // namespace farpage::simulation
