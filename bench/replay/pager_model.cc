#include "bench/replay/pager_model.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "pager/evict/eviction_batch.h"
#include "pager/fault/prefetcher.h"
#include "pager/pages/budget.h"

namespace farpage::bench {

using pager::PageState;
using pager::PageWord;

namespace {

pager::PageTable make_table(uint64_t pages) {
  Result<pager::PageTable> table = pager::PageTable::create(pages);
  FARPAGE_CHECK(table.has_value(), "%s", table.error().message().c_str());
  return std::move(*table);
}

}  // namespace

PagerModel::PagerModel(uint64_t pages, uint64_t capacity, Ahead ahead,
                       const pager::PagerOptions& options)
    : capacity_(capacity),
      high_(pager::Budget::mark(capacity, options.high_water_percent, pager::Budget::kNarrowest)),
      low_(pager::Budget::mark(capacity, options.low_water_percent, pager::Budget::kNarrowest)),
      table_(make_table(pages)),
      protected_(pages),
      written_(pages),
      ahead_(ahead),
      depth_(pager::prefetch_limit(capacity, options.prefetch_depth)) {}

bool PagerModel::touch(PageAccess access) {
  const PageIndex page{access.page};
  const PageWord word = table_.load(page);
  if (pager::is_resident(word.state())) {
    if (access.kind == AccessKind::kWrite) write_resident(page, word);
    return true;
  }
  make_room();
  // What was never written is zeros, which come in writable.
  const bool is_fetched = word.state() == PageState::kRemote;
  install(access, word,
          access.kind == AccessKind::kWrite || !is_fetched || !write_guess_.protect_next());
  if (word.state() == PageState::kRemote && ahead_ != Ahead::kNothing) fetch_ahead(page, word);
  return false;
}

void PagerModel::make_room() {
  if (used_ > high_)
    while (used_ > low_ && evict_batch()) {
    }
}

// As FaultWorker::prefetch_after().
void PagerModel::fetch_ahead(PageIndex page, PageWord word) {
  constexpr uint32_t kThread = 1;
  if (const auto plan = trends_.observe(kThread, page, depth_)) return fetch_ahead(*plan);
  if (ahead_ != Ahead::kClusters || depth_ < pager::Cluster::kPages) return;
  const pager::Cluster cluster = clusters_.choose(table_, page, word, age_clock_);
  if (cluster.members == 0) return;
  trends_.came_with(kThread, page, cluster);
  for (uint32_t i = 0; i < pager::Cluster::kPages; ++i) {
    const uint64_t first = cluster.first.value + i;
    uint32_t members = 0;
    for (; i < pager::Cluster::kPages && cluster.has(cluster.first.value + i); ++i) ++members;
    bring(first, members, true);
  }
}

void PagerModel::fetch_ahead(const pager::PrefetchPlan& plan) {
  for (uint32_t i = 0; i < plan.pages; ++i) {
    if (i == plan.gap) continue;
    const uint64_t page =
        plan.first.value + static_cast<uint64_t>(plan.stride * static_cast<int64_t>(i));
    uint32_t together = 1;
    for (; std::abs(plan.stride) == 1 && i + 1 < plan.pages && i + 1 != plan.gap &&
           (i + 1) % pager::Prefetcher::kRunPages != 0;
         ++i)
      ++together;
    bring(plan.stride == -1 ? page - (together - 1) : page, together, false);
  }
}

void PagerModel::bring(uint64_t first, uint32_t pages, bool of_cluster) {
  const auto is_remote = [this](uint64_t page) {
    return page < table_.pages() && table_.load(PageIndex{page}).state() == PageState::kRemote;
  };
  for (uint32_t begin = 0; begin < pages;) {
    uint32_t end = begin;
    while (end < pages && is_remote(first + end)) ++end;
    if (end > begin) bring_run(first + begin, end - begin, of_cluster);
    begin = end + 1;
  }
}

// As Prefetcher::land() and install().
void PagerModel::bring_run(uint64_t first, uint32_t pages, bool of_cluster) {
  ++counts_.reads_ahead;
  counts_.pages_ahead += pages;
  const bool writable = !write_guess_.protect_next(pages);
  for (uint64_t page = first; page < first + pages; ++page) {
    make_room();
    install({static_cast<uint32_t>(page), AccessKind::kRead}, table_.load(PageIndex{page}),
            writable, of_cluster);
  }
}

void PagerModel::discard(uint32_t page) {
  const PageWord word = table_.load(PageIndex{page});
  if (word.state() == PageState::kEmpty) return;
  if (pager::is_resident(word.state())) --used_;
  table_.transition_owned(PageIndex{page}, word, PageWord(PageState::kEmpty));
}

void PagerModel::install(PageAccess access, PageWord word, bool writable, bool expected) {
  const PageIndex page{access.page};
  const bool remote = word.state() == PageState::kRemote;
  const PageWord fetching = word.to(PageState::kFetching, remote ? PageWord::kFromRemote : 0);
  table_.transition_owned(page, word, fetching);
  const PageWord here = fetching.to(writable || !remote ? PageState::kDirty : PageState::kClean);
  if (remote)
    eviction_.choice.returned(pager::order_of(word), static_cast<uint8_t>(epoch() - word.epoch()));
  table_.transition_owned(page, fetching,
                          remote && expected ? came_back(here, epoch()) : stamped(here, epoch()));
  protected_[access.page] = false;
  written_[access.page] = access.kind == AccessKind::kWrite || !remote;
  age_clock_ += pager::age_step(capacity_);
  ++used_;
}

void PagerModel::write_resident(PageIndex page, PageWord word) {
  written_[page.value] = true;
  if (word.state() == PageState::kDirty && !protected_[page.value]) return;
  ++counts_.write_faults;
  if (word.state() == PageState::kClean) write_guess_.written();
  const PageWord held = word.to(PageState::kUnprotecting);
  table_.transition_owned(page, word, held);
  const PageWord dirty = held.to(PageState::kDirty);
  table_.transition_owned(page, held, word.state() == PageState::kClean ? dirty : in_use(dirty));
  protected_[page.value] = false;
}

// EvictionBatch::pick() without pins, hints, leases and faults that wait for room. False: no victim
// was found.
bool PagerModel::evict_batch() {
  victims_.clear();
  pager::EvictionOrder order = eviction_.choice.next(epoch());
  pick(order);
  if (victims_.empty() && order != pager::EvictionOrder::kOldest)
    pick(order = pager::EvictionOrder::kOldest);
  if (victims_.empty()) pick(order);
  protect_spans();
  for (const PageIndex page : victims_) drop(page, order);
  eviction_.choice.left(order, static_cast<uint32_t>(victims_.size()), epoch());
  return !victims_.empty();
}

void PagerModel::pick(pager::EvictionOrder order) {
  pager::EvictionHand& hand = eviction_.hand_of(order);
  uint32_t spans = 0;
  const auto is_full = [&] {
    const uint64_t excess =
        std::max<uint64_t>(used_ > low_ ? used_ - low_ : 0, pager::EvictionBatch::kFewestPages);
    return victims_.size() >= excess ||
           pager::EvictionBatch::kSmall.is_reached(victims_.size(), spans);
  };
  do {
    while (!is_full()) {
      const auto due = hand.next_in_block(epoch());
      if (!due) break;
      if (victims_.empty() || due->page.value != victims_.back().value + 1) ++spans;
      victims_.push_back(due->page);
      hand.took();
    }
  } while (!is_full() && hand.next_block());
}

// As EvictionBatch::protect().
void PagerModel::protect_spans() {
  const auto block_of = [](PageIndex page) { return page.value / pager::kPagesPerBlock; };
  std::optional<PageIndex> last;
  for (const PageIndex victim : victims_) {
    if (table_.load(victim).state() != PageState::kDirty) continue;
    const bool same_block = last && block_of(*last) == block_of(victim);
    const bool reaches = same_block && !pager::EvictionBatch::is_any_in_use(table_, *last, victim);
    const uint64_t first = reaches ? last->value : victim.value;
    for (uint64_t page = first; page <= victim.value; ++page)
      if (table_.load(PageIndex{page}).state() == PageState::kDirty) protected_[page] = true;
    last = victim;
  }
}

bool PagerModel::leaves_written(PageIndex page, PageWord word) {
  if (word.state() != PageState::kDirty) return false;
  const bool written = written_[page.value];
  ++(written ? counts_.written_back : counts_.unchanged);
  return written;
}

void PagerModel::drop(PageIndex page, pager::EvictionOrder order) {
  (void)leaves_written(page, table_.load(page));
  for (const PageState state : {PageState::kEvicting, PageState::kDropping, PageState::kRemote}) {
    const PageWord word = table_.load(page);
    table_.transition_owned(page, word, departed(word.to(state), order, epoch()));
  }
  --used_;
}

}  // namespace farpage::bench
