#include "pager/pages/page_table.h"

#include "base/check.h"

namespace farpage::pager {

PageTable::PageTable(Mapping word_memory, Mapping count_memory, Mapping shared_memory,
                     uint64_t pages)
    : word_memory_(std::move(word_memory)),
      count_memory_(std::move(count_memory)),
      shared_memory_(std::move(shared_memory)),
      shared_(reinterpret_cast<Shared*>(shared_memory_.data())),
      pages_(pages) {}

Result<PageTable> PageTable::create(uint64_t pages) {
  const uint64_t blocks = (pages + kPagesPerBlock - 1) / kPagesPerBlock;
  FARPAGE_TRY(words, Mapping::anonymous(pages * sizeof(uint32_t)));
  FARPAGE_TRY(counts, Mapping::anonymous(blocks * sizeof(uint32_t)));
  FARPAGE_TRY(shared, Mapping::anonymous(kPageBytes));
  return PageTable(std::move(words), std::move(counts), std::move(shared), pages);
}

bool PageTable::transition(PageIndex page, PageWord from, PageWord to) {
  FARPAGE_CHECK(is_legal_transition(from.state(), to.state()), "page %llu: %s to %s",
                static_cast<unsigned long long>(page.value), to_string(from.state()).data(),
                to_string(to.state()).data());
  if (from.state() == PageState::kEmpty) note_used(page);
  uint32_t expected = from.raw();
  if (!words()[page.value].compare_exchange_strong(expected, to.raw(), std::memory_order_acq_rel,
                                                   std::memory_order_acquire))
    return false;
  count(page, from, to);
  return true;
}

bool PageTable::end_fetching(PageIndex page, PageWord from, PageWord to) {
  if (transition(page, from, to)) return false;
  transition_owned(page, PageWord(from.raw() | PageWord::kAwaited), to);
  return true;
}

bool PageTable::mark_awaited(PageIndex page, PageWord fetching) {
  uint32_t expected = fetching.raw();
  return words()[page.value].compare_exchange_strong(expected, expected | PageWord::kAwaited,
                                                     std::memory_order_acq_rel,
                                                     std::memory_order_acquire);
}

bool PageTable::set_references(PageIndex page, PageWord from, uint32_t references) {
  uint32_t expected = from.raw();
  return words()[page.value].compare_exchange_strong(
      expected, from.with_references(references).raw(), std::memory_order_acq_rel,
      std::memory_order_acquire);
}

bool PageTable::mark_shared(PageIndex page, PageWord from) {
  const PageWord to = from.to(from.state(), PageWord::kShared);
  uint32_t expected = from.raw();
  if (!words()[page.value].compare_exchange_strong(expected, to.raw(), std::memory_order_acq_rel,
                                                   std::memory_order_acquire))
    return false;
  count(page, from, to);
  return true;
}

void PageTable::count(PageIndex page, PageWord from, PageWord to) {
  const bool was = is_resident(from.state());
  const bool is = is_resident(to.state());
  if (was != is) {
    std::atomic<uint32_t>& count = counts()[page.value / kPagesPerBlock];
    if (is) {
      count.fetch_add(1, std::memory_order_relaxed);
    } else {
      count.fetch_sub(1, std::memory_order_relaxed);
    }
  }
  const auto count_if = [](std::atomic<uint64_t>& sum, bool before, bool after) {
    if (before == after) return;
    if (after) {
      sum.fetch_add(1, std::memory_order_relaxed);
    } else {
      sum.fetch_sub(1, std::memory_order_relaxed);
    }
  };
  count_if(shared_->away, is_away(from), is_away(to));
  count_if(shared_->shared, is_shared(from), is_shared(to));
}

void PageTable::place(PageIndex page, PageWord word) {
  note_used(page);
  words()[page.value].store(word.raw(), std::memory_order_release);
  count(page, PageWord(), word);
}

void PageTable::note_used(PageIndex page) {
  uint64_t used = shared_->used.load(std::memory_order_relaxed);
  while (used <= page.value &&
         !shared_->used.compare_exchange_weak(used, page.value + 1, std::memory_order_release,
                                              std::memory_order_relaxed)) {
  }
}

void PageTable::transition_owned(PageIndex page, PageWord from, PageWord to) {
  const bool moved = transition(page, from, to);
  FARPAGE_CHECK(moved, "page %llu is %#x, its owner left it at %#x",
                static_cast<unsigned long long>(page.value), load(page).raw(), from.raw());
}

}  // namespace farpage::pager
