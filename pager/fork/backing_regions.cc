#include "pager/fork/backing_regions.h"

#include <utility>

#include "base/log.h"

namespace farpage::pager {

void BackingRegions::disown() {
  const MutexLock lock(mutex_);
  closed_ = true;
  for (size_t i = 0; i < count_.load(std::memory_order_relaxed); ++i) own_[i]->borrower().disown();
}

Status BackingRegions::add(std::optional<Milliseconds> patience) {
  const MutexLock lock(mutex_);
  if (closed_) return fail(ErrorCode::kUnavailable, "the pager ends");
  const size_t count = count_.load(std::memory_order_relaxed);
  if (count == kMaxOwn)
    return fail(ErrorCode::kExhausted, "too many children share different contents of one page");
  FARPAGE_TRY(backing_region, BackingRegion::create(image_.fork_group(), options_,
                                                    image_.table().pages(), client_, succession_));
  backing_region->borrower().own(owner_);
  if (patience) {
    FARPAGE_TRY_VOID(backing_region->borrower().open_region(*patience));
  }
  FARPAGE_TRY_VOID(keeper_.add_region(backing_region->number()));
  backing_region->borrower().start(borrower_thread_);
  image_.backing_regions().push_back(backing_region);
  own_[count] = std::move(backing_region);
  count_.store(count + 1, std::memory_order_release);
  return {};
}

void BackingRegions::take_over(BackingRegionList own) {
  const MutexLock lock(mutex_);
  size_t count = 0;
  for (std::shared_ptr<BackingRegion>& region : own) {
    region->borrower().own(owner_);
    own_[count++] = std::move(region);
  }
  count_.store(count, std::memory_order_release);
}

std::optional<BackingId> BackingRegions::writable(PageIndex page, ForkGroup& group) {
  for (size_t i = 0;; ++i) {
    if (i == count_.load(std::memory_order_relaxed)) {
      group.mutex().unlock();  // a new backing region gets its number under this lock
      const Status added = add(std::nullopt);
      group.mutex().lock();
      if (!added) {
        if (!std::exchange(full_, true))
          log::warn("pager: no_backing_region reason=\"{}\": some pages stay resident",
                    added.error().message());
        return std::nullopt;
      }
    }
    BackingRegion& backing_region = *own_[i];
    if (is_shared(i) && group.refers_elsewhere(image_, backing_region.id(), page)) continue;
    if (backing_region.leases().find(page) != nullptr) return backing_region.id();
    backing_region.want(page);
    return std::nullopt;
  }
}

bool BackingRegions::refused() const {
  for (size_t i = 0; i < count_.load(std::memory_order_relaxed); ++i)
    if (own_[i]->borrower().lease_refused()) return true;
  return full_;
}

bool BackingRegions::lacks_slab() const {
  for (size_t i = 0; i < count_.load(std::memory_order_acquire); ++i)
    if (!own_[i]->leases().wanted(1).empty()) return true;
  return false;
}

uint64_t BackingRegions::leased_slabs() const {
  uint64_t slabs = 0;
  for (size_t i = 0; i < count_.load(std::memory_order_acquire); ++i)
    slabs += own_[i]->borrower().leased_slabs();
  return slabs;
}

}  // namespace farpage::pager
