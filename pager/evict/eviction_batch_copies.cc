// Compressed copies of the pages that leave. See pager/compress/compressed_pages.h.
//
// A copy is made of what phase 2 has copied out, or of a Clean page, which a write would take out
// of the batch: so the copy is right if the page is dropped, and only then its word says that there
// is one.

#include "pager/evict/eviction_batch.h"

namespace farpage::pager {

// Before victims are picked: fewer may be needed then.
void EvictionBatch::trim_copies() {
  CompressedPages& copies = target_->copies;
  if (!copies.enabled()) return;
  copies.trim(target_->most_pool_pages());
  give_back(0);
}

void EvictionBatch::give_back(uint64_t freed) {
  const uint64_t now = target_->copies.pool_pages();
  const uint64_t before = std::exchange(target_->eviction.pool_pages, now);
  freed += before;
  if (freed >= now) {
    target_->budget.evicted(freed - now);
  } else {
    target_->budget.take_anyway(now - freed);
  }
}

void EvictionBatch::keep_copies(size_t first, size_t end) {
  if (!target_->copies.enabled()) return;
  std::span<const std::byte> clean = read_clean(first, end);
  for (size_t i = first; i < end; ++i) {
    Victim& victim = victims_[i];
    if (victim.keep || victim.zero) continue;
    if (victim.word.has(PageWord::kWasDirty)) {
      keep_copy(victim, bytes_of(victim));
    } else if (!clean.empty()) {
      keep_copy(victim, clean.first(kPageBytes));
      clean = clean.subspan(kPageBytes);
    }
  }
}

// The bytes of the Clean victims, in their order; none if one of them cannot be read. They are at
// the end of the buffer, which has room for all victims.
std::span<const std::byte> EvictionBatch::read_clean(size_t first, size_t end) {
  std::array<PageIndex, kPagesOfStep> pages;
  size_t count = 0;
  for (size_t i = first; i < end; ++i) {
    const Victim& victim = victims_[i];
    if (!victim.keep && !victim.word.has(PageWord::kWasDirty)) pages[count++] = victim.page;
  }
  if (count == 0) return {};
  const auto into = port_.buffer().subspan((kMaxPages - count) * kPageBytes, count * kPageBytes);
  if (!target_->space.read(std::span(pages).first(count), into)) return {};
  return into;
}

void EvictionBatch::keep_copy(Victim& victim, std::span<const std::byte> bytes) {
  CompressedPages& copies = target_->copies;
  std::array<std::byte, CompressedPages::kMaxBytes> block;
  const auto size = codec_.compress(bytes, block);
  if (!size) {
    copies.forget(victim.page);
    return;
  }
  victim.copied =
      copies.insert(victim.page, std::span(block).first(*size), target_->most_pool_pages(), 0);
}

// Of pages that stay: nobody would use them.
void EvictionBatch::forget_copies() {
  for (size_t i = 0; i < count_; ++i)
    if (victims_[i].copied && victims_[i].keep) target_->copies.forget(victims_[i].page);
}

}  // namespace farpage::pager
