#include "pager/pages/page_table.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/check.h"
#include "pager/pages/page_age.h"

namespace farpage::pager {

PageTable::PageTable(Mapping memory, Mapping count_memory, Mapping shared_memory, uint64_t pages)
    : memory_(std::move(memory)),
      count_memory_(std::move(count_memory)),
      shared_memory_(std::move(shared_memory)),
      shared_(reinterpret_cast<Shared*>(shared_memory_.data())),
      pages_(pages) {}

Result<PageTable> PageTable::create(uint64_t pages) {
  FARPAGE_TRY(memory, Mapping::anonymous(memory_bytes(pages)));
  return create(pages, std::move(memory));
}

Result<PageTable> PageTable::create(uint64_t pages, Mapping memory) {
  const uint64_t blocks = (pages + kPagesPerBlock - 1) / kPagesPerBlock;
  FARPAGE_TRY(counts, Mapping::anonymous(blocks * sizeof(uint32_t)));
  FARPAGE_TRY(shared, Mapping::anonymous(kPageBytes));
  PageTable table(std::move(memory), std::move(counts), std::move(shared), pages);
  for (uint64_t page = table.next_used(0); page < pages; page = table.next_used(page + 1))
    table.count(PageIndex{page}, PageWord(), table.load(PageIndex{page}));
  return table;
}

bool PageTable::replace(PageIndex page, PageWord from, PageWord to) {
  uint32_t expected = from.raw();
  return words()[page.value].compare_exchange_strong(expected, to.raw(), std::memory_order_acq_rel,
                                                     std::memory_order_acquire);
}

bool PageTable::transition(PageIndex page, PageWord from, PageWord to) {
  FARPAGE_CHECK(is_legal_transition(from.state(), to.state()), "page %llu: %s to %s",
                static_cast<unsigned long long>(page.value), to_string(from.state()).data(),
                to_string(to.state()).data());
  if (from.state() == PageState::kEmpty) note_used(page);
  if (!replace(page, from, to)) return false;
  count(page, from, to);
  return true;
}

bool PageTable::end_fetching(PageIndex page, PageWord from, PageWord to) {
  if (transition(page, from, to)) return false;
  while (true) {
    const PageWord marked = load(page);
    const uint32_t marks = marked.raw() & (PageWord::kAwaited | PageWord::kDiscarded);
    FARPAGE_CHECK(PageWord(from.raw() | marks) == marked,
                  "page %llu is %#x, its owner left it at %#x",
                  static_cast<unsigned long long>(page.value), marked.raw(), from.raw());
    FARPAGE_CHECK(!marked.has(PageWord::kDiscarded) || to.state() == PageState::kEmpty,
                  "page %llu was given up", static_cast<unsigned long long>(page.value));
    if (transition(page, marked, to)) return marked.has(PageWord::kAwaited);
  }
}

bool PageTable::mark_awaited(PageIndex page, PageWord fetching) {
  return replace(page, fetching, PageWord(fetching.raw() | PageWord::kAwaited));
}

bool PageTable::mark_discarded(PageIndex page, PageWord fetching) {
  return replace(page, fetching, PageWord(fetching.raw() | PageWord::kDiscarded));
}

bool PageTable::mark_shared(PageIndex page, PageWord from) {
  const PageWord to = from.to(from.state(), PageWord::kShared);
  if (!replace(page, from, to)) return false;
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
  const uint64_t block = page.value / kPagesPerBlock;
  std::atomic<uint64_t>& bits = used()[block / 64];
  const uint64_t bit = uint64_t{1} << (block % 64);
  if ((bits.load(std::memory_order_relaxed) & bit) == 0)
    bits.fetch_or(bit, std::memory_order_release);
}

uint64_t PageTable::next_used(uint64_t page) const {
  uint64_t block = page / kPagesPerBlock;
  while (block < blocks()) {
    // Acquire: pairs with the release in note_used().
    const uint64_t rest = used()[block / 64].load(std::memory_order_acquire) >> (block % 64);
    if (rest != 0) {
      const uint64_t first =
          (block + static_cast<uint64_t>(std::countr_zero(rest))) * kPagesPerBlock;
      return std::min(std::max(page, first), pages_);
    }
    block = (block / 64 + 1) * 64;
  }
  return pages_;
}

void PageTable::transition_owned(PageIndex page, PageWord from, PageWord to) {
  const bool moved = transition(page, from, to);
  FARPAGE_CHECK(moved, "page %llu is %#x, its owner left it at %#x",
                static_cast<unsigned long long>(page.value), load(page).raw(), from.raw());
}

Status check_invariants(const PageTable& table) {
  uint64_t away = 0;
  uint64_t shared = 0;
  for (uint64_t block = 0; block < table.blocks(); ++block) {
    uint32_t resident = 0;
    for (uint64_t i = block * kPagesPerBlock; i < (block + 1) * kPagesPerBlock; ++i) {
      if (i >= table.pages()) break;
      const PageWord word = table.load(PageIndex{i});
      if (is_resident(word.state())) ++resident;
      if (is_away(word)) ++away;
      if (is_shared(word)) ++shared;
      if (word.state() != PageState::kEmpty && table.next_used(i) != i)
        return fail(ErrorCode::kConflict, "page " + std::to_string(i) + " is not known as used");
    }
    if (resident != table.resident_in_block(block))
      return fail(ErrorCode::kConflict, "block " + std::to_string(block) + " counts " +
                                            std::to_string(table.resident_in_block(block)) +
                                            " resident pages, has " + std::to_string(resident));
  }
  if (away != table.away_pages())
    return fail(ErrorCode::kConflict, "the table counts " + std::to_string(table.away_pages()) +
                                          " pages away, has " + std::to_string(away));
  if (shared != table.shared_pages())
    return fail(ErrorCode::kConflict, "the table counts " + std::to_string(table.shared_pages()) +
                                          " shared pages, has " + std::to_string(shared));
  return {};
}

}  // namespace farpage::pager
