#include "pager/evict/eviction_batch.h"

#include <algorithm>
#include <thread>

#include "base/check.h"

namespace farpage::pager {

EvictionBatch::EvictionBatch(EngineCore& engine, LinkPort& port) : engine_(engine), port_(port) {
  FARPAGE_CHECK(port.buffer().size() >= kBufferBytes, "%zu bytes", port.buffer().size());
}

bool EvictionBatch::begin(Target& target, Size most, Nanoseconds drop_patience) {
  FARPAGE_CHECK(!active(), "%zu pages are still on their way", count_);
  target_ = &target;
  most_ = most;
  drop_patience_ = drop_patience;
  spans_ = 0;
  taken_back_ = 0;
  misses_slab_ = false;
  made_own_ = 0;
  picked_at_ = SteadyClock::read();
  if (!target.space.can_drop()) {
    target.eviction.progress.failed(picked_at_);
    return false;
  }
  trim_copies();
  engine_.copy_gate.begin_writing();
  pick();
  if (!active()) {
    engine_.copy_gate.end_writing();
    const bool slabs_will_come = misses_slab_ && !target.backing_regions.refused();
    if (target.budget.above_low() && !drop_copies() && !slabs_will_come)
      target.eviction.progress.failed(picked_at_);
    return false;
  }
  give_way();
  protect();
  give_way();
  closing_ = false;
  posted_at_ = SteadyClock::read();
  (void)gap_.turn(posted_at_);
  run_count_ = 0;
  copied_ = 0;
  // Sends copied pages while they are in the cache.
  for (size_t first = 0, end = 0; first < count_; first = end) {
    end = step_end(first);
    copy_out(first, end);
    build_runs(first, end);
    (void)post_runs();
    keep_copies(first, end);
    give_way();
  }
  return true;
}

size_t EvictionBatch::step_end(size_t first) const {
  const size_t most = std::min(first + kPagesOfStep, count_);
  const uint32_t most_spans = most_.step_spans > 0 ? most_.step_spans : kMaxPages;
  size_t end = first + 1;
  for (uint32_t spans = 1; end < most; ++end)
    if (victims_[end].page.value != victims_[end - 1].page.value + 1 && ++spans > most_spans) break;
  return end;
}

// Yields to a fault worker. Threads that resolve their own faults do not need it.
void EvictionBatch::give_way() const {
  if (most_.step_spans > 0 && !target_->options.resolve_in_thread && !target_->budget.has_waiters())
    std::this_thread::yield();
}

// Picks pages that the target has called cold, of one run per batch, so that victims stay in order.
void EvictionBatch::pick_cold() {
  while (count_ == 0) {
    const auto run = target_->cold.take(most_.pages);
    if (!run) return;
    ForkGroup& group = *target_->image.fork_group();
    const MutexLock lock(group.mutex());
    for (uint32_t i = 0; i < run->pages; ++i) {
      const PageIndex page{run->first.value + i};
      if (try_take(page, target_->table.load(page), group) == Taken::kWithoutSlab)
        target_->cold.put_off(page);
    }
  }
}

// Phase 0.
void EvictionBatch::pick() {
  order_ = EvictionOrder::kByHint;
  pick_cold();
  if (count_ > 0 || !target_->budget.above_low()) return;
  // Not below the low mark, but as many as are worth the calls.
  most_.pages = std::min(most_.pages, static_cast<uint32_t>(std::clamp<uint64_t>(
                                          target_->budget.excess(), kFewestPages, kMaxPages)));
  order_ = target_->eviction.choice.next(target_->current_epoch());
  pick_in_order();
  if (!active() && order_ != EvictionOrder::kOldest) {
    order_ = EvictionOrder::kOldest;
    pick_in_order();
  }
  // An earlier batch may have taken all that was due in the round.
  if (!active()) pick_in_order();
}

// Until the batch is full or the hand completes its round.
void EvictionBatch::pick_in_order() {
  EvictionHand& hand = target_->eviction.hand_of(order_);
  do {
    pick_from_block(hand);
  } while (!is_full() && hand.next_block());  // a block that filled the batch may have more
}

void EvictionBatch::pick_from_block(EvictionHand& hand) {
  ForkGroup& group = *target_->image.fork_group();
  const MutexLock lock(group.mutex());
  const uint8_t now = target_->current_epoch();
  while (!is_full()) {
    const auto due = hand.next_in_block(now);
    if (!due) return;
    if (try_take(due->page, due->word, group) == Taken::kYes) hand.took();
  }
}

EvictionBatch::Taken EvictionBatch::try_take(PageIndex page, PageWord word, ForkGroup& group) {
  if (word.state() != PageState::kClean && word.state() != PageState::kDirty) return Taken::kNo;
  if (target_->pins.is_pinned(page)) return Taken::kNo;
  if (target_->order != nullptr && is_shared(word)) {
    if (made_own_ < kMaxMadeOwn) target_->space.make_own(page);
    ++made_own_;
    return Taken::kNo;  // a later batch takes it
  }
  PageWord evicting = word.to(PageState::kEvicting, shared_flag(word));
  if (word.state() == PageState::kDirty) {
    const std::optional<BackingId> backing_region = target_->backing_regions.writable(page, group);
    if (!backing_region) {
      misses_slab_ = true;
      return Taken::kWithoutSlab;
    }
    evicting = word.to(PageState::kEvicting, PageWord::kWasDirty | shared_flag(word))
                   .with_backing(*backing_region);
  }
  if (engine_.copy_gate.is_closed(target_->leases_of(evicting), page)) return Taken::kNo;
  if (!target_->table.transition(page, word, evicting)) return Taken::kNo;
  if (count_ == 0 || page.value != victims_[count_ - 1].page.value + 1) ++spans_;
  victims_[count_++] =
      Victim{.page = page, .word = evicting, .lease = target_->leases_of(evicting).find(page)};
  return Taken::kYes;
}

// Phase 1: in each block one call from the first to the last Dirty victim, and a further one behind
// each page in use. The pages between them are protected too: they stay, and the next write to one
// is a fault, which flushes the TLBs of the program's CPUs. A page in use costs that each time.
void EvictionBatch::protect() {
  size_t i = 0;
  while (i < count_) {
    const uint64_t block = victims_[i].page.value / kPagesPerBlock;
    std::optional<PageIndex> first;
    PageIndex last{0};
    const auto protect_so_far = [&] {
      if (first) protect_run(*first, static_cast<uint32_t>(last.value - first->value + 1));
      first.reset();
    };
    for (; i < count_ && victims_[i].page.value / kPagesPerBlock == block; ++i) {
      const Victim& victim = victims_[i];
      if (!victim.word.has(PageWord::kWasDirty)) continue;
      if (first && is_any_in_use(target_->table, last, victim.page)) protect_so_far();
      if (!first) first = victim.page;
      last = victim.page;
    }
    protect_so_far();
  }
}

bool EvictionBatch::is_any_in_use(const PageTable& table, PageIndex before, PageIndex behind) {
  for (uint64_t page = before.value + 1; page < behind.value; ++page) {
    const PageWord word = table.load(PageIndex{page});
    if (word.state() == PageState::kDirty && word.references() > 0) return true;
  }
  return false;
}

void EvictionBatch::protect_run(PageIndex first, uint32_t pages) {
  if (target_->protect({first, pages})) return;
  // Page by page, victims only.
  for (size_t i = 0; i < count_; ++i) {
    Victim& victim = victims_[i];
    if (victim.page < first || victim.page.value >= first.value + pages) continue;
    if (!victim.word.has(PageWord::kWasDirty)) continue;
    if (!target_->protect({victim.page, 1})) keep_or_forget(victim);
  }
}

// Phase 2: copies out the dirty ones of these victims, packed, in address order.
void EvictionBatch::copy_out(size_t first, size_t end) {
  std::array<PageIndex, kPagesOfStep> pages;
  size_t copied = 0;
  for (size_t i = first; i < end; ++i) {
    Victim& victim = victims_[i];
    if (victim.keep || !victim.word.has(PageWord::kWasDirty)) continue;
    victim.buffer = static_cast<int16_t>(copied_ + copied);
    pages[copied++] = victim.page;
  }
  if (copied == 0) return;
  const auto into = port_.buffer().subspan(copied_ * kPageBytes, copied * kPageBytes);
  copied_ += copied;
  if (!target_->space.copy_out(std::span(pages).first(copied), into)) {
    // One of them is not readable (unmapped meanwhile, or the target is gone): find out which.
    for (size_t i = first; i < end; ++i) {
      Victim& victim = victims_[i];
      if (victim.buffer < 0) continue;
      if (!target_->space.copy_out({&victim.page, 1}, bytes_of(victim))) {
        victim.buffer = -1;
        keep_or_forget(victim);
      }
    }
  }
  note_zero_pages(first, end);
  note_unchanged_pages(first, end);
}

void EvictionBatch::note_zero_pages(size_t first, size_t end) {
  const auto all_zero = [](std::span<const std::byte> page) {
    const auto* words = reinterpret_cast<const uint64_t*>(page.data());
    // In steps of a cache line, so that the common case, a page with data, ends at once.
    for (size_t i = 0; i < kPageBytes / 8; i += 8) {
      uint64_t any = 0;
      for (size_t j = 0; j < 8; ++j) any |= words[i + j];
      if (any != 0) return false;
    }
    return true;
  };
  for (size_t i = first; i < end; ++i) {
    Victim& victim = victims_[i];
    if (victim.buffer < 0 || !all_zero(bytes_of(victim))) continue;
    victim.zero = true;
    victim.buffer = -1;
  }
}

void EvictionBatch::note_unchanged_pages(size_t first, size_t end) {
  for (size_t i = first; i < end; ++i) {
    Victim& victim = victims_[i];
    if (victim.buffer < 0) continue;
    SlotChecksums& slots = target_->checksums_of(victim.word);
    UnchangedSample& sample = target_->eviction.unchanged;
    if (engine_.options.checksums || sample.wants(victim.page)) {
      victim.checksum = slots.of(bytes_of(victim));
      const uint64_t known = slots.known(victim.page);
      victim.unchanged = known == victim.checksum;
      if (known != 0 && !engine_.options.checksums) sample.compared(victim.unchanged);
    }
    if (!victim.unchanged) slots.forget(victim.page);
  }
}

// For a page that cannot be protected or read. Its memory and its content may be gone. Or the
// target has dropped it, and where threads resolve their own faults no worker answers this thread's
// fault: then it gets zeros, which a later batch finds.
void EvictionBatch::keep_or_forget(Victim& victim) {
  victim.keep = true;
  const ChangingPages section(target_->order);
  const PageWord held = victim.word.to(PageState::kFetching);
  if (!target_->table.transition(victim.page, victim.word, held)) {
    ++taken_back_;
    return;
  }
  const uffd::ZeroResult zero = target_->space.zero({victim.page, 1}, uffd::ZeroFrames::kShared);
  const bool gone = zero.outcome == uffd::Outcome::kUnmapped;
  target_->end_fetching(victim.page, held, held.to(gone ? PageState::kEmpty : PageState::kDirty));
  if (!gone) return;
  target_->budget.give_back(1);
  ++forgotten_;
}

void EvictionBatch::keep_resident(Victim& victim, PageState state) {
  victim.keep = true;
  const PageWord kept = victim.word.to(state, shared_flag(victim.word));
  if (!target_->table.transition(victim.page, victim.word, kept)) ++taken_back_;
}

}  // namespace farpage::pager
