#include "pager/evictor.h"

#include <pthread.h>
#include <unistd.h>

#include "base/check.h"
#include "base/log.h"

namespace farpage::pager {

Evictor::Evictor(Core& core, LinkPort& port, bool paused)
    : core_(core),
      port_(port),
      windows_(kMaxNodes, WriteWindow(kBatchPages)),
      hand_(core.table),
      pauses_(paused ? 1 : 0),
      pause_hint_(paused),
      thread_([this] { run(); }) {
  FARPAGE_CHECK(port.buffer().size() >= kBufferBytes, "%zu bytes", port.buffer().size());
}

Evictor::~Evictor() {
  core_.budget.interrupt();
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Evictor::pause() {
  std::unique_lock lock(mutex_);
  ++pauses_;
  pause_hint_.store(true, std::memory_order_release);
  core_.budget.interrupt();
  changed_.wait(lock, [this] { return paused_ || core_.stopping.load(std::memory_order_acquire); });
}

void Evictor::resume() {
  const std::lock_guard lock(mutex_);
  FARPAGE_CHECK(pauses_ > 0, "resumed %d times too often", 1 - pauses_);
  pause_hint_.store(--pauses_ > 0, std::memory_order_release);
  changed_.notify_all();
}

bool Evictor::wait_while_paused() {
  if (!pause_hint_.load(std::memory_order_acquire)) return false;
  std::unique_lock lock(mutex_);
  paused_ = pauses_ > 0;
  changed_.notify_all();
  changed_.wait(lock,
                [this] { return pauses_ == 0 || core_.stopping.load(std::memory_order_acquire); });
  paused_ = false;
  return true;
}

void Evictor::run() {
  (void)pthread_setname_np(pthread_self(), "fp-evict");
  core_.evictor_thread.store(static_cast<uint32_t>(::gettid()), std::memory_order_release);
  while (!core_.stopping.load(std::memory_order_acquire)) {
    if (wait_while_paused()) continue;
    if (!core_.budget.above_high() && !core_.budget.has_waiters() && core_.cold.empty()) {
      core_.budget.wait_for_pressure(Milliseconds(100));
      continue;
    }
    while ((core_.budget.above_low() || !core_.cold.empty()) &&
           !pause_hint_.load(std::memory_order_acquire) &&
           !core_.stopping.load(std::memory_order_acquire)) {
      const Instant start = SteadyClock::read();
      if (pick() == 0) {
        if (!core_.budget.above_low()) break;  // nothing was left of what is cold
        // Everything resident is pinned, in use by fault workers, or in slabs without a lease.
        std::this_thread::sleep_for(Milliseconds(1));
        break;
      }
      protect();
      copy_out();
      build_runs();
      write_out();
      drop();
      finish_batch();
      stats_.batches.add();
      stats_.batch_ns.record(static_cast<uint64_t>((SteadyClock::read() - start).count()));
    }
  }
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

// What the target has called cold, of one run for each batch, so that victims stay in order.
void Evictor::pick_cold() {
  while (count_ == 0) {
    const auto run = core_.cold.take(kBatchPages);
    if (!run) return;
    std::unique_lock family_lock(core_.member.family()->mutex());
    for (uint32_t i = 0; i < run->pages; ++i) {
      const PageIndex page{run->first.value + i};
      (void)try_take(page, core_.table.load(page), family_lock);
    }
  }
}

// Phase 0: victims, in address order, until the batch is full or the hand has come round.
size_t Evictor::pick() {
  count_ = 0;
  pick_cold();
  if (count_ > 0 || !core_.budget.above_low()) return count_;
  do {
    pick_from_block();
  } while (count_ < kBatchPages && hand_.next_block());  // a block that filled it may have more
  return count_;
}

void Evictor::pick_from_block() {
  std::unique_lock family_lock(core_.member.family()->mutex());
  const uint8_t now = core_.current_epoch();
  while (count_ < kBatchPages) {
    const auto due = hand_.next_in_block(now);
    if (!due) return;
    if (try_take(due->page, due->word, family_lock)) hand_.took();
  }
}

bool Evictor::try_take(PageIndex page, PageWord word, std::unique_lock<std::mutex>& family_lock) {
  if (word.state() != PageState::kClean && word.state() != PageState::kDirty) return false;
  if (core_.pins.is_pinned(page)) return false;
  PageWord evicting = word.to(PageState::kEvicting);
  if (word.state() == PageState::kDirty) {
    const std::optional<LayerId> layer = core_.layers.writable(page, family_lock);
    if (!layer) return false;
    evicting = word.to(PageState::kEvicting, PageWord::kWasDirty).with_layer(*layer);
  }
  if (!core_.table.transition(page, word, evicting)) return false;
  victims_[count_++] = Victim{.page = page, .word = evicting};
  return true;
}

// Phase 1: one call for the span from the first to the last dirty victim of each block.
void Evictor::protect() {
  size_t i = 0;
  while (i < count_) {
    const uint64_t block = victims_[i].page.value / kPagesPerBlock;
    PageIndex first{0};
    PageIndex last{0};
    bool any = false;
    for (; i < count_ && victims_[i].page.value / kPagesPerBlock == block; ++i) {
      if (!victims_[i].word.has(PageWord::kWasDirty)) continue;
      if (!any) first = victims_[i].page;
      last = victims_[i].page;
      any = true;
    }
    if (any) protect_run(first, static_cast<uint32_t>(last.value - first.value + 1));
  }
}

void Evictor::protect_run(PageIndex first, uint32_t pages) {
  const auto with_retries = [this](uffd::PageRun run) {
    uffd::Outcome outcome = core_.space.protect(run);
    while (outcome == uffd::Outcome::kRetry && !core_.stopping.load(std::memory_order_acquire)) {
      std::this_thread::yield();  // a fault worker is draining the events
      outcome = core_.space.protect(run);
    }
    return outcome;
  };
  const uffd::Outcome whole = with_retries({first, pages});
  if (whole == uffd::Outcome::kDone) return;
  // The span crosses mappings, or a part is gone: page by page, victims only.
  for (size_t i = 0; i < count_; ++i) {
    Victim& victim = victims_[i];
    if (victim.page < first || victim.page.value >= first.value + pages) continue;
    if (!victim.word.has(PageWord::kWasDirty)) continue;
    if (with_retries({victim.page, 1}) != uffd::Outcome::kDone)
      keep_resident(victim, PageState::kDirty);
  }
}

// Phase 2: the dirty victims, packed, in address order.
void Evictor::copy_out() {
  std::array<PageIndex, kBatchPages> pages;
  size_t copied = 0;
  for (size_t i = 0; i < count_; ++i) {
    Victim& victim = victims_[i];
    if (victim.keep || !victim.word.has(PageWord::kWasDirty)) continue;
    victim.buffer = static_cast<int16_t>(copied);
    pages[copied++] = victim.page;
  }
  if (copied == 0) return;
  if (core_.space.read(std::span(pages).first(copied), port_.buffer())) {
    note_zero_pages();
    return;
  }
  // One of them is not readable (unmapped meanwhile, or the target is gone): find out which.
  for (size_t i = 0; i < count_; ++i) {
    Victim& victim = victims_[i];
    if (victim.buffer < 0) continue;
    if (!core_.space.read({&victim.page, 1}, bytes_of(victim))) {
      victim.buffer = -1;
      keep_resident(victim, PageState::kDirty);
    }
  }
  note_zero_pages();
}

void Evictor::note_zero_pages() {
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
  for (size_t i = 0; i < count_; ++i) {
    Victim& victim = victims_[i];
    if (victim.buffer < 0 || !all_zero(bytes_of(victim))) continue;
    victim.zero = true;
    victim.buffer = -1;
  }
}

void Evictor::keep_resident(Victim& victim, PageState state) {
  victim.keep = true;
  (void)core_.table.transition(victim.page, victim.word, victim.word.to(state));
}

void Evictor::finish_batch() {
  uint64_t freed = 0;
  for (size_t i = 0; i < count_; ++i)
    if (!victims_[i].keep) ++freed;
  if (freed > 0 || !core_.budget.above_low()) {  // what was only cold may as well stay
    stuck_batches_ = 0;
    return;
  }
  // Nothing could be written back: do not spin on it.
  if ((++stuck_batches_ == 1 || stuck_batches_ % 1000 == 0) && core_.space.alive())
    log::warn("pager: eviction_stuck batches={} resident_pages={}", stuck_batches_,
              core_.budget.used());
  std::this_thread::sleep_for(Milliseconds(1));
}

}  // namespace farpage::pager
