#include "pager/fork/fork_in_progress.h"

#include <algorithm>

#include "base/log.h"
#include "pager/fault/discard.h"

namespace farpage::pager {
namespace {

constexpr Milliseconds kArrivalLook{1};

// The child's state of a page that was `before` in the snapshot and is `now` in the parent.
PageWord inherited(PageWord before, PageWord now) {
  switch (before.state()) {
    case PageState::kRemote:
      return before.to(PageState::kRemote, now == before && !before.has(PageWord::kMaybePresent)
                                               ? 0
                                               : PageWord::kMaybePresent);
    case PageState::kFetching:
      return before.has(PageWord::kFromRemote)
                 ? before.to(PageState::kRemote, PageWord::kMaybePresent)
                 : PageWord();
    case PageState::kClean:
      return before.to(now.state() == PageState::kClean ? PageState::kClean : PageState::kDirty);
    case PageState::kDirty:
    case PageState::kUnprotecting:
    case PageState::kEvicting:
    case PageState::kDropping:
      return before.to(PageState::kDirty);
    case PageState::kEmpty:
    case PageState::kLost:
      return before.to(before.state());
  }
  return {};
}

// The child's state of a page that is `now` in the parent at the moment of the copy.
PageWord copied_now(PageWord now) {
  switch (now.state()) {
    case PageState::kFetching:
      return now.has(PageWord::kFromRemote) && !now.has(PageWord::kDiscarded)
                 ? now.to(PageState::kRemote, PageWord::kMaybePresent)
                 : PageWord();
    case PageState::kRemote:
      return now.to(PageState::kRemote, now.raw() & PageWord::kMaybePresent);
    case PageState::kClean:
    case PageState::kEmpty:
    case PageState::kLost:
      return now.to(now.state());
    case PageState::kDirty:
    case PageState::kUnprotecting:
    case PageState::kEvicting:
    case PageState::kDropping:
      return now.to(PageState::kDirty);
  }
  return {};
}

// Settles whether the page is present: places zeros if not. True: it is Dirty from now on. While
// the child has an unread event (it may run already) nothing can be placed: if the page is absent,
// its next touch, or its eviction, finds that out.
bool settle_empty(uffd::AddressSpace& child, PageIndex page) {
  const uffd::Outcome outcome = child.zero({page, 1}, uffd::ZeroFrames::kShared).outcome;
  return outcome == uffd::Outcome::kDone || outcome == uffd::Outcome::kAlreadyPresent ||
         outcome == uffd::Outcome::kRetry;
}

}  // namespace

Status ForkInProgress::open() {
  const auto same = [](PageIndex, PageWord word) { return word; };
  FARPAGE_TRY(snapshot, ProcessImage::copy_of(target_.image, same, &target_.engine.succession));
  const MutexLock lock(mutex_);
  adopt_arrivals();  // of forks that were not announced
  snapshot_ = std::move(snapshot);
  children_ = 0;
  return {};
}

void ForkInProgress::take_over(std::unique_ptr<ProcessImage> snapshot, size_t children) {
  const MutexLock lock(mutex_);
  snapshot_ = std::move(snapshot);
  children_ = children;
}

uint64_t ForkInProgress::snapshot_table() {
  const MutexLock lock(mutex_);
  return snapshot_ ? snapshot_->table_number() : 0;
}

void ForkInProgress::close(bool forked, const std::function<void()>& closing) {
  const MutexLock lock(mutex_);
  adopt_arrivals();
  while (forked && snapshot_ && children_ == 0 &&
         !target_.closing.load(std::memory_order_acquire) &&
         !target_.gone.load(std::memory_order_acquire) && target_.space.alive()) {
    {
      MutexLock arrivals(arrivals_mutex_);
      arrival_.wait_for(arrivals, kArrivalLook,
                        [this]() FARPAGE_REQUIRES(arrivals_mutex_) { return !arrivals_.empty(); });
    }
    adopt_arrivals();
  }
  if (closing) closing();
  snapshot_.reset();
}

bool ForkInProgress::has_arrivals() const {
  const MutexLock lock(arrivals_mutex_);
  return !arrivals_.empty();
}

// During a fork: has the kernel made the copy for the child? While an event is unread it may
// have; the answer waits for that.
bool ForkInProgress::copied() {
  const auto known = [this]() FARPAGE_REQUIRES(mutex_) { return children_ > 0 || has_arrivals(); };
  while (!known() && target_.space.event_pending() &&
         !target_.closing.load(std::memory_order_acquire)) {
    MutexLock arrivals(arrivals_mutex_);
    arrival_.wait_for(arrivals, kArrivalLook,
                      [this]() FARPAGE_REQUIRES(arrivals_mutex_) { return !arrivals_.empty(); });
  }
  // An event that is not in the kernel's queue any more may still be in a worker's hands.
  if (!known()) target_.engine.event_readers.wait_until_handled();
  return known();
}

// Pages that are discarded before the copy do not exist in the child; later the child keeps them.
// It may also have one that was Empty in the snapshot: the parent's word will not tell any more.
void ForkInProgress::discard(uffd::PageRun run) {
  {
    const MutexLock lock(mutex_);
    if (snapshot_) {
      const bool in_child = copied();
      PageTable& table = snapshot_->table();
      const uint64_t end = run.first.value + run.pages;
      for (uint64_t i = target_.table.next_used(run.first.value); i < end;
           i = target_.table.next_used(i + 1)) {
        const PageIndex page{i};
        const PageWord word = table.load(page);
        const bool empty = word.state() == PageState::kEmpty;
        if (empty == in_child)
          table.transition_owned(page, word,
                                 PageWord(in_child ? PageState::kFetching : PageState::kEmpty));
      }
    }
  }
  (void)discard_pages(target_, run, BusyPages::kWait);
}

bool ForkInProgress::try_discard(uffd::PageRun run) {
  {
    if (!mutex_.try_lock()) return false;
    const MutexLock lock(mutex_, std::adopt_lock);
    if (snapshot_) return false;
  }
  return discard_pages(target_, run, BusyPages::kSkip);
}

Result<std::unique_ptr<ProcessImage>> ForkInProgress::make_image(uffd::AddressSpace& child) const {
  const auto word_of = [this](PageIndex page, PageWord before) {
    return inherited(before, target_.table.load(page));
  };
  FARPAGE_TRY(image, ProcessImage::copy_of(*snapshot_, word_of, &target_.engine.succession));
  // Pages first used after the snapshot.
  const PageTable& table = target_.table;
  for (uint64_t i = table.next_used(0); i < table.pages(); i = table.next_used(i + 1)) {
    const PageIndex page{i};
    const PageWord before = snapshot_->table().load(page);
    const bool unsure =
        before.state() == PageState::kFetching
            ? !before.has(PageWord::kFromRemote)
            : before.state() == PageState::kEmpty && is_resident(table.load(page).state());
    if (unsure && settle_empty(child, page))
      image->table().place(page, PageWord(PageState::kDirty));
  }
  return image;
}

// Without a snapshot the child's memory is unknown: where a page is missing it gets SIGBUS.
Result<std::unique_ptr<ProcessImage>> ForkInProgress::make_lost_image() const {
  log::error("pager: fork_past_the_shim: the child gets SIGBUS where pages were remote");
  const auto word_of = [](PageIndex, PageWord word) {
    return word.state() == PageState::kEmpty ? word : word.to(PageState::kLost);
  };
  return ProcessImage::copy_of(target_.image, word_of, &target_.engine.succession);
}

void ForkInProgress::arrived(std::unique_ptr<uffd::AddressSpace> child) {
  arrived(Arrival{std::move(child), nullptr});
}

void ForkInProgress::arrived_in_order(std::unique_ptr<uffd::AddressSpace> child) {
  const auto word_of = [](PageIndex, PageWord word) { return copied_now(word); };
  Result<std::unique_ptr<ProcessImage>> image =
      ProcessImage::copy_of(target_.image, word_of, &target_.engine.succession);
  arrived(Arrival{std::move(child), image ? std::move(*image) : nullptr});
}

void ForkInProgress::arrived(Arrival arrival) {
  {
    const MutexLock lock(arrivals_mutex_);
    arrivals_.push_back(std::move(arrival));
  }
  arrival_.notify_all();
  arrival_bell_.ring();
}

void ForkInProgress::adopt() {
  const MutexLock lock(mutex_);
  adopt_arrivals();
}

// First marked, then protected: a page that leaves in between takes its mark along, and a
// protection that comes too late costs a fault.
uint64_t ForkInProgress::guard_shared() {
  const PageTable& table = target_.table;
  uint64_t marked = 0;
  for (uint64_t page = table.next_used(0); page < table.pages();
       page = table.next_used(page + kPagesPerBlock)) {
    if (table.resident_in_block(page / kPagesPerBlock) > 0) marked += guard_block(PageIndex{page});
  }
  return marked;
}

uint64_t ForkInProgress::guard_block(PageIndex block) {
  PageTable& table = target_.table;
  const uint64_t end = std::min(block.value + kPagesPerBlock, table.pages());
  uint64_t first = end;
  uint64_t last = 0;
  uint64_t marked = 0;
  for (uint64_t i = block.value; i < end; ++i) {
    const PageIndex page{i};
    const PageWord word = table.load(page);
    const bool dirty = word.state() == PageState::kDirty;
    if ((!dirty && word.state() != PageState::kClean) || is_shared(word)) continue;
    if (!table.mark_shared(page, word)) continue;
    ++marked;
    if (!dirty) continue;
    first = std::min(first, i);
    last = i;
  }
  if (first == end) return marked;
  if (target_.protect({PageIndex{first}, static_cast<uint32_t>(last - first + 1)})) return marked;
  for (uint64_t i = first; i <= last; ++i) (void)target_.protect({PageIndex{i}, 1});
  return marked;
}

void ForkInProgress::adopt_arrivals() {
  std::vector<Arrival> arrivals;
  {
    const MutexLock lock(arrivals_mutex_);
    arrivals.swap(arrivals_);
  }
  for (Arrival& arrival : arrivals) adopt_one(std::move(arrival));
}

void ForkInProgress::adopt_one(Arrival arrival) {
  ++children_;
  std::unique_ptr<uffd::AddressSpace> child = std::move(arrival.child);
  Result<std::unique_ptr<ProcessImage>> image = arrival.image ? std::move(arrival.image)
                                                : snapshot_   ? make_image(*child)
                                                              : make_lost_image();
  if (!image) {
    log::error("pager: child_stranded reason=\"{}\": it waits for ever at a page that is remote",
               image.error().message());
    stranded_.push_back(std::move(child));
    return;
  }
  on_child_({.space = std::move(child),
             .image = std::move(*image),
             .age_clock = target_.age_clock.load(std::memory_order_relaxed)});
}

}  // namespace farpage::pager
