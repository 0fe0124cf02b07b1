#include "pager/layer_set.h"

#include <utility>

#include "base/log.h"

namespace farpage::pager {

void LayerSet::disown() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (size_t i = 0; i < count_.load(std::memory_order_relaxed); ++i) own_[i]->borrower().disown();
}

Status LayerSet::add(std::optional<Milliseconds> patience) {
  const std::lock_guard lock(mutex_);
  if (closed_) return fail(ErrorCode::kUnavailable, "the pager ends");
  const size_t count = count_.load(std::memory_order_relaxed);
  if (count == kMaxOwn)
    return fail(ErrorCode::kExhausted, "too many children share different contents of one page");
  FARPAGE_TRY(layer,
              Layer::create(member_.family(), options_, member_.table().pages(), client_, owner_));
  if (patience) {
    FARPAGE_TRY_VOID(layer->borrower().open_region(*patience));
  }
  layer->borrower().start();
  member_.layers().push_back(layer);
  own_[count] = std::move(layer);
  count_.store(count + 1, std::memory_order_release);
  return {};
}

std::optional<LayerId> LayerSet::writable(PageIndex page,
                                          std::unique_lock<std::mutex>& family_lock) {
  for (size_t i = 0;; ++i) {
    if (i == count_.load(std::memory_order_relaxed)) {
      family_lock.unlock();  // a new layer gets its number under this lock
      const Status added = add(std::nullopt);
      family_lock.lock();
      if (!added) {
        if (!std::exchange(full_, true))
          log::warn("pager: no_layer reason=\"{}\": some pages stay resident",
                    added.error().message());
        return std::nullopt;
      }
    }
    Layer& layer = *own_[i];
    if (member_.family()->refers_elsewhere(member_, layer.id(), page)) continue;
    if (layer.leases().find(page) != nullptr) return layer.id();
    layer.want(page);
    return std::nullopt;
  }
}

uint64_t LayerSet::leased_slabs() const {
  uint64_t slabs = 0;
  for (size_t i = 0; i < count_.load(std::memory_order_acquire); ++i)
    slabs += own_[i]->borrower().leased_slabs();
  return slabs;
}

}  // namespace farpage::pager
