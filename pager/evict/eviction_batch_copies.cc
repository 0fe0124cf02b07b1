// Compressed copies of the pages that leave. See pager/compress/compressed_pages.h.
//
// A copy is made of what phase 2 has copied out, or of a Clean page, which a write would take out
// of the batch: so the copy is right if the page is dropped, and only then its word says that there
// is one.

#include <algorithm>
#include <utility>

#include "pager/evict/eviction_batch.h"

namespace farpage::pager {

// Before victims are picked: fewer may be needed then.
void EvictionBatch::trim_copies() {
  CompressedPages& copies = target_->copies;
  if (!copies.enabled()) return;
  review_copies();
  copies.trim(target_->eviction.compression.part_of(target_->most_pool_pages()));
  give_back(0);
}

// Where no page can leave: what no node has a slab for is Dirty, and the copies may be nearly a
// third of the budget. False: there are none.
bool EvictionBatch::drop_copies() {
  CompressedPages& copies = target_->copies;
  const uint64_t before = copies.pool_pages();
  if (before == 0) return false;
  copies.trim(before - std::min({before, target_->budget.excess(), uint64_t{kMaxPages}}));
  if (copies.pool_pages() == before) return false;
  give_back(0);
  target_->eviction.progress.freed(picked_at_);
  return true;
}

void EvictionBatch::review_copies() {
  CompressionPolicy& policy = target_->eviction.compression;
  const uint64_t departures = target_->eviction.counts.pages_dropped();
  if (!policy.is_due(departures)) return;
  EvictionState::FaultTimes& recent = *target_->eviction.fault_times;
  CompressionPolicy::Use use{
      .share_pages = target_->most_pool_pages(),
      .departures = departures,
      .remote_fault_ns = recent.remote_fault.look(target_->times.fault_ns),
      .compressed_fault_ns = recent.compressed_fault.look(target_->times.compressed_ns),
      .wire_ns = recent.wire.look(target_->times.wire_ns)};
  for (uint32_t i = 0; i < target_->options.workers; ++i) {
    const WorkerCounts& worker = target_->counts_of(i);
    use.hits += worker.faults_compressed.get() + worker.prefetch_compressed_pages.get();
    use.early_hits += worker.early_copies.get();
  }
  policy.review(use);
}

void EvictionBatch::give_back(uint64_t freed) {
  target_->departures.fetch_add(static_cast<uint32_t>(freed), std::memory_order_relaxed);
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
  for (size_t i = first; i < end; ++i)
    victims_[i].tries_copy = target_->eviction.compression.tries_next();
  std::span<const std::byte> clean = read_clean(first, end);
  for (size_t i = first; i < end; ++i) {
    Victim& victim = victims_[i];
    if (victim.keep || victim.zero || !victim.tries_copy) continue;
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
    const bool clean = !victim.word.has(PageWord::kWasDirty);
    if (victim.tries_copy && !victim.keep && clean) pages[count++] = victim.page;
  }
  if (count == 0) return {};
  const auto into = port_.buffer().subspan((kMaxPages - count) * kPageBytes, count * kPageBytes);
  if (!target_->space.copy_out(std::span(pages).first(count), into)) return {};
  return into;
}

void EvictionBatch::keep_copy(Victim& victim, std::span<const std::byte> bytes) {
  CompressedPages& copies = target_->copies;
  std::array<std::byte, CompressedPages::kMaxBytes> block;
  const auto size = codec_.compress(bytes, block);
  CompressionPolicy& policy = target_->eviction.compression;
  policy.tried(size.value_or(kPageBytes));
  if (!size) return;
  victim.copied = copies.insert(victim.page, std::span(block).first(*size),
                                policy.part_of(target_->most_pool_pages()),
                                target_->departures.load(std::memory_order_relaxed));
}

// Of pages that stay: nobody would use them.
void EvictionBatch::forget_copies() {
  for (size_t i = 0; i < count_; ++i)
    if (victims_[i].copied && victims_[i].keep) target_->copies.forget(victims_[i].page);
}

}  // namespace farpage::pager
